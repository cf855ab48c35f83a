/* attree bench: a front of attree_bench. Where nobody watches, it becomes attree_bench; on a terminal it passes on what
 * that prints and shows how far it is. */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common.h"

namespace tool {

namespace {

const char help_text[] = R"(usage: attree bench [--quick] [--list] [--json] [--progress] [ARGUMENT ...]

Speed and accuracy on this machine, as fractions of its bandwidth and of its peak.

  --quick      a few cases, in well under a minute: attree_bench --short
  --list       the names of the cases, and nothing more
  --json       Google Benchmark's JSON on standard output
  --progress   a line about the progress on standard error even when that is not a terminal
  ARGUMENT     anything that attree_bench takes; attree_bench --help tells. The most useful:
               --shape NAME, just this case;  --serving, caches as servers keep them;  --case FILE, tensors from a file
)";

struct Request {
    std::vector<std::string> arguments; // the program first
    bool list = false, progress = false;
};

std::string directory_of_this_program()
{
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    const std::string program(path, length > 0 ? static_cast<std::size_t>(length) : 0);
    return program.substr(0, program.rfind('/') + 1);
}

/* Beside this program, where a build has it, or in PATH, in which exec looks. */
std::string find_program()
{
    const std::string here = directory_of_this_program();
    for (const char *const place : {"attree_bench", "../benchmarks/attree_bench"})
        if (access((here + place).c_str(), X_OK) == 0)
            return here + place;
    return "attree_bench";
}

/* false for --help. */
bool parse(int count, char **arguments, Request *request)
{
    request->arguments.push_back(find_program());
    for (int n = 0; n < count; n++) {
        const std::string argument = arguments[n];
        if (argument == "--help" || argument == "-h")
            return false;
        if (argument == "--quick")
            request->arguments.push_back("--short");
        else if (argument == "--json")
            request->arguments.push_back("--benchmark_format=json");
        else if (argument == "--progress")
            request->progress = true;
        else if (argument == "--list")
            request->list = true;
        else
            request->arguments.push_back(argument);
    }
    return true;
}

/* Becomes the program. */
[[noreturn]] void become(std::vector<std::string> arguments)
{
    std::vector<char *> pointers;
    for (std::string &argument : arguments)
        pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    (void)execvp(pointers[0], pointers.data());
    (void)std::fprintf(stderr, "attree: attree_bench cannot be started (%s); it must be beside attree or in PATH\n",
                       std::strerror(errno));
    _exit(misused);
}

/* A process whose standard output can be read. */
class Child {
  public:
    explicit Child(const std::vector<std::string> &arguments)
    {
        int ends[2];
        if (pipe(ends) != 0 || (process_ = fork()) < 0)
            throw std::runtime_error(std::string("a process cannot be started: ") + std::strerror(errno));
        if (process_ == 0) {
            (void)dup2(ends[1], STDOUT_FILENO);
            (void)close(ends[0]);
            (void)close(ends[1]);
            become(arguments);
        }
        (void)close(ends[1]);
        output_ = ends[0];
    }
    Child(const Child &) = delete;
    Child &operator=(const Child &) = delete;
    ~Child()
    {
        (void)close(output_);
        if (process_ > 0) {
            (void)kill(process_, SIGTERM);
            (void)wait();
        }
    }

    /* Text that has come, or none after a second; false at its end. */
    bool read(std::string *text)
    {
        text->clear();
        pollfd readable{output_, POLLIN, 0};
        const int ready = poll(&readable, 1, 1000);
        if (ready == 0 || (ready < 0 && errno == EINTR))
            return true;
        char buffer[4096];
        const ssize_t count = ::read(output_, buffer, sizeof buffer);
        if (count > 0)
            text->assign(buffer, static_cast<std::size_t>(count));
        return count > 0;
    }

    /* The exit status, as a shell has it. */
    int wait()
    {
        int status = 0;
        while (waitpid(process_, &status, 0) < 0 && errno == EINTR)
            continue;
        process_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }

  private:
    pid_t process_ = -1;
    int output_ = -1;
};

/* Names of the cases that the arguments ask for; none when they are wrong, which attree_bench says itself. */
std::vector<std::string> list_cases(std::vector<std::string> arguments)
{
    arguments.emplace_back("--benchmark_list_tests");
    Child child(arguments);
    std::string all;
    for (std::string text; child.read(&text);)
        all += text;
    if (const int status = child.wait(); status != 0)
        std::exit(status);
    std::vector<std::string> names;
    const std::string suffix = "/process_time/real_time"; // Google Benchmark's
    for (std::size_t at = 0, end; (end = all.find('\n', at)) != std::string::npos; at = end + 1) {
        std::string name = all.substr(at, end - at);
        if (name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0)
            name.erase(name.size() - suffix.size());
        names.push_back(std::move(name));
    }
    return names;
}

/* How many of the cases have been mentioned in the text so far, in order. */
class Count {
  public:
    explicit Count(std::vector<std::string> names) : names_(std::move(names)) {}

    void read(const std::string &text)
    {
        tail_ += text;
        for (std::size_t found; done_ < names_.size() && (found = tail_.find(names_[done_])) != std::string::npos;
             done_++)
            tail_.erase(0, found + names_[done_].size());
    }

    std::string line(std::int64_t seconds) const
    {
        std::string text =
            std::to_string(done_) + " of " + std::to_string(names_.size()) + ", " + std::to_string(seconds) + " s";
        return done_ < names_.size() ? text + ": " + names_[done_] + " ..." : text;
    }

  private:
    std::vector<std::string> names_;
    std::size_t done_ = 0;
    std::string tail_; // what came after the last one
};

int watch(const Request &request, Progress *progress)
{
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    Count count(list_cases(request.arguments));
    Child child(request.arguments);
    bool at_start_of_line = true;
    for (std::string text; child.read(&text);) {
        progress->clear();
        (void)std::fwrite(text.data(), 1, text.size(), stdout);
        if (!text.empty())
            at_start_of_line = text.back() == '\n';
        count.read(text);
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start);
        if (at_start_of_line)
            progress->show(count.line(seconds.count()));
    }
    progress->clear();
    return child.wait();
}

} // namespace

int bench(int count, char **arguments)
{
    Request request;
    if (!parse(count, arguments, &request)) {
        (void)std::fputs(help_text, stdout);
        return good;
    }
    if (request.list) {
        for (const std::string &name : list_cases(request.arguments))
            (void)std::printf("%s\n", name.c_str());
        return good;
    }
    Progress progress(request.progress);
    if (!progress.shown())
        become(request.arguments);
    return watch(request, &progress);
}

} // namespace tool
