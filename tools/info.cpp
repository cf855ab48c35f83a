/* attree info: what the library finds on this machine. */
#include <link.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "common.h"
#include "golden.h"
#include "require.h"

namespace tool {

namespace {

struct Cache {
    std::string level, type, size; // as sysfs spells them: 2, Unified, 1024K
};

std::string first_line(const std::string &path)
{
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/* Those of the first processor; none where the system does not tell. */
std::vector<Cache> caches()
{
    std::vector<Cache> found;
    for (int n = 0;; n++) {
        const std::string at = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(n) + "/";
        Cache cache{first_line(at + "level"), first_line(at + "type"), first_line(at + "size")};
        if (cache.level.empty())
            return found;
        found.push_back(std::move(cache));
    }
}

std::string cpu_name()
{
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("model name", 0) == 0)
            return line.substr(line.find(':') + 2);
    return "unknown";
}

/* The file that is loaded as `name`, behind all links; its name only. */
std::string loaded_file(const char *name)
{
    std::string path;
    struct Search {
        const char *name;
        std::string *path;
    } search{name, &path};
    (void)dl_iterate_phdr(
        [](dl_phdr_info *info, std::size_t, void *data) {
            const auto *const wanted = static_cast<const Search *>(data);
            if (std::strstr(info->dlpi_name, wanted->name) != nullptr)
                *wanted->path = info->dlpi_name;
            return 0;
        },
        &search);
    char real[PATH_MAX];
    if (!path.empty() && realpath(path.c_str(), real) != nullptr)
        path = real;
    return path.substr(path.rfind('/') + 1); // npos + 1 is 0
}

struct Info {
    Chosen chosen = chosen_by_default();
    std::vector<attree_isa> isas = available_isas();
    std::string sleef = ATTREE_SLEEF_VERSION, sleef_file = loaded_file("/libsleef.so");
    unsigned processors = std::thread::hardware_concurrency();
    std::uint64_t hash = 0;
    bool same() const { return hash == ATTREE_GOLDEN; }
};

void print_json(const Info &i)
{
    std::vector<std::string> isas, sizes;
    for (const attree_isa isa : i.isas)
        isas.push_back(json_string(isa_name(isa)));
    for (const Cache &cache : caches())
        sizes.push_back(JsonObject()
                            .add("level", cache.level)
                            .add("type", json_string(cache.type))
                            .add("size", json_string(cache.size))
                            .text());
    JsonObject json;
    json.add("version", json_string(attree_version())).add("cpu", json_string(cpu_name()));
    json.add("isa", json_string(i.chosen.kernel)).add("isas", json_array(isas));
    json.add("threads", std::to_string(i.chosen.workers)).add("processors", std::to_string(i.processors));
    json.add("caches", json_array(sizes));
    json.add("sleef", json_string(i.sleef)).add("sleef_file", json_string(i.sleef_file));
    json.add("hash", json_string(hexadecimal(i.hash))).add("golden", json_string(hexadecimal(ATTREE_GOLDEN)));
    json.add("same", i.same() ? "true" : "false");
    (void)std::printf("%s\n", json.text().c_str());
}

void print_text(const Info &i)
{
    (void)std::printf("attree       %s\n", attree_version());
    (void)std::printf("processor    %s\n", cpu_name().c_str());
    (void)std::printf("kernels      %s; this machine has", i.chosen.kernel.c_str());
    for (const attree_isa isa : i.isas)
        (void)std::printf(" %s", isa_name(isa));
    (void)std::printf("\nthreads      %d; %u processors\n", static_cast<int>(i.chosen.workers), i.processors);
    for (const Cache &cache : caches())
        (void)std::printf("cache        level %s, %s: %s\n", cache.level.c_str(), cache.type.c_str(),
                          cache.size.c_str());
    (void)std::printf("SLEEF        built with %s; running %s\n", i.sleef.c_str(),
                      i.sleef_file.empty() ? "the same, linked statically" : i.sleef_file.c_str());
    (void)std::printf("golden hash  %s with %s: %s\n", hexadecimal(i.hash).c_str(), i.chosen.kernel.c_str(),
                      i.same() ? "same bits as everywhere"
                               : ("OTHER BITS, it must be " + hexadecimal(ATTREE_GOLDEN)).c_str());
}

} // namespace

int info(Arguments &arguments)
{
    const bool json = arguments.take("--json");
    if (!arguments.plain().empty())
        throw UsageError("info takes no argument \"" + arguments.plain().front() + "\"");
    Info found;
    {
        Progress progress;
        progress.show("computing the golden hash ...");
        bench::require(attree_golden_hash(ATTREE_ISA_AUTO, 0, &found.hash), "the golden hash");
    }
    if (json)
        print_json(found);
    else
        print_text(found);
    return found.same() ? good : bad;
}

} // namespace tool
