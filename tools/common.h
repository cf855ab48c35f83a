/* What the commands of the tool share. */
#ifndef ATTREE_TOOL_COMMON_H
#define ATTREE_TOOL_COMMON_H

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "attree/attree.h"

namespace tool {

/* Exit statuses of the tool. */
enum Status { good = 0, bad = 1, misused = 2 };

/* A command line that means nothing, or a file that cannot be read: `misused`. */
class UsageError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/* The arguments of a command, taken one by one: options first by name, then what is left must be plain arguments. */
class Arguments {
  public:
    Arguments(int count, char **arguments) : left_(arguments, arguments + count) {}

    /* Takes "--name" out; returns whether it was there. */
    bool take(const std::string &name);

    /* Takes "--name VALUE" or "--name=VALUE" out; returns whether it was there. */
    bool take(const std::string &name, std::string *value);

    /* What is left, when there is no option among it. */
    const std::vector<std::string> &plain() const;

  private:
    std::vector<std::string> left_;
};

/* The number of workers that --threads says, or `otherwise`. */
std::int32_t take_threads(Arguments &arguments, std::int32_t otherwise);

/* The instruction set that --isa says, or ATTREE_ISA_AUTO. */
attree_isa take_isa(Arguments &arguments);

const char *isa_name(attree_isa isa);

/* Instruction sets that this machine has, the narrowest first. */
std::vector<attree_isa> available_isas();

/* What a plan says about itself. */
struct Chosen {
    std::string kernel;
    std::int32_t workers = 0;
};
Chosen describe(const attree_plan *plan);

/* The library's own choice, for a problem with work for all threads. */
Chosen chosen_by_default();

/* "0x0123456789abcdef" */
std::string hexadecimal(std::uint64_t number);

/* "1.2e-07", or null in JSON when it is not finite. */
std::string short_number(double number);
std::string json_number(double number);

/* "text", with what JSON does not allow in strings escaped. */
std::string json_string(const std::string &text);

/* [one, two], of texts that are JSON already. */
std::string json_array(const std::vector<std::string> &elements);

/* {"name": value, ...} */
class JsonObject {
  public:
    JsonObject &add(const std::string &name, const std::string &json);
    std::string text() const { return "{" + text_ + "}"; }

  private:
    std::string text_;
};

/* A line about long work, on standard error, overwritten by the next and erased at the end; only when that is a
 * terminal, or when it is asked for. */
class Progress {
  public:
    explicit Progress(bool always = false);
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    ~Progress() { clear(); }

    bool shown() const { return shown_; }
    void show(const std::string &line);
    void clear();

  private:
    bool shown_, dirty_ = false;
};

/* Commands. Each is given what follows its name, and returns the exit status. */
int info(Arguments &arguments);
int run(Arguments &arguments);
int verify(Arguments &arguments);
int bench(int count, char **arguments);

} // namespace tool

#endif // ATTREE_TOOL_COMMON_H
