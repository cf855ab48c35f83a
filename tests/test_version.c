/* The version is the same in the header, in CMakeLists.txt and in the library that is running. */
#include <stdio.h>
#include <string.h>

#include "attree/attree.h"

int main(void)
{
    char header[32];
    (void)snprintf(header, sizeof header, "%d.%d.%d", ATTREE_VERSION_MAJOR, ATTREE_VERSION_MINOR, ATTREE_VERSION_PATCH);
    printf("header %s, CMake %s, library %s\n", header, ATTREE_TEST_VERSION, attree_version());
    return strcmp(header, attree_version()) == 0 && strcmp(header, ATTREE_TEST_VERSION) == 0 ? 0 : 1;
}
