# `cpack -G DEB` makes libattree0, libattree-dev and attree-tools. Configure with -DCMAKE_INSTALL_PREFIX=/usr for the
# library to go where Debian has its libraries; scripts/package_test.sh does, and tests the packages.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME attree)
set(CPACK_PACKAGE_CONTACT "The attree authors <attree@localhost>" CACHE STRING "Maintainer of the packages")
set(CPACK_PACKAGE_VENDOR attree)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL attree_runtime attree_development)
if(ATTREE_TOOLS OR ATTREE_BENCHMARKS)
  list(APPEND CPACK_COMPONENTS_ALL attree_tools)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each description has its own first line; CPack would put this before it
set(about "attree computes softmax attention with grouped heads, masks, biases and quantised or
paged caches. Results have the same bits for any number of threads, any batch and any
instruction set.
")

# What programs need comes from their undefined symbols; of our own library, which dpkg-shlibdeps finds in the build
# tree only, it is said here.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(library libattree${PROJECT_VERSION_MAJOR})
set(same "${library} (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_ATTREE_RUNTIME_PACKAGE_NAME ${library})
set(CPACK_DEBIAN_ATTREE_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_ATTREE_RUNTIME_DESCRIPTION "exact attention on CPUs - shared library
${about}
This package has the shared library.")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

set(CPACK_DEBIAN_ATTREE_DEVELOPMENT_PACKAGE_NAME libattree-dev)
set(CPACK_DEBIAN_ATTREE_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_ATTREE_DEVELOPMENT_PACKAGE_DEPENDS "${same}")
set(CPACK_DEBIAN_ATTREE_DEVELOPMENT_PACKAGE_RECOMMENDS libsleef-dev) # for linking statically
set(CPACK_DEBIAN_ATTREE_DEVELOPMENT_DESCRIPTION "exact attention on CPUs - development files
${about}
This package has the header, the static library and the files for CMake and pkg-config.")

set(CPACK_DEBIAN_ATTREE_TOOLS_PACKAGE_NAME attree-tools)
set(CPACK_DEBIAN_ATTREE_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_ATTREE_TOOLS_PACKAGE_DEPENDS "${same}")
set(CPACK_DEBIAN_ATTREE_TOOLS_PACKAGE_SUGGESTS libopenblas0) # the benchmark's comparison
set(CPACK_DEBIAN_ATTREE_TOOLS_DESCRIPTION "exact attention on CPUs - command-line tools
${about}
This package has the program attree, which checks that a machine gives the bits that
all others do, and the benchmark attree_bench.")

include(CPack)
