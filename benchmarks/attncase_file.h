/* The container of an .attncase file: attributes and typed tensors, without their meaning. See attncase.h. The machine
 * must be little-endian, as the file is. */
#ifndef ATTREE_BENCH_ATTNCASE_FILE_H
#define ATTREE_BENCH_ATTNCASE_FILE_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace bench {

enum class CaseType { f32, f16, f64, u8, i64 };

struct CaseTensor {
    CaseType type = CaseType::f32;
    std::vector<std::int64_t> dims;    // each >= 0; the tensor lies within the file
    std::size_t offset = 0, count = 0; // first byte in the payload; elements
};

struct CaseFile {
    std::string name;
    std::map<std::string, std::string> attributes;
    std::map<std::string, CaseTensor> tensors;
    std::string payload;
};

/* "f16", 2 */
const char *type_name(CaseType type);
std::size_t type_bytes(CaseType type);

/* These throw std::runtime_error with a sentence that does not name the file. */
CaseFile read_case_file(const std::string &path);
const CaseTensor &find_tensor(const CaseFile &file, const std::string &name);

/* The elements of a tensor: those of an f32, f16 or f64 one exactly, those of an i64 one, and any, as they are. */
std::vector<double> read_numbers(const CaseFile &file, const std::string &name);
std::vector<std::int64_t> read_integers(const CaseFile &file, const std::string &name);
std::vector<std::byte> read_bytes(const CaseFile &file, const std::string &name);

/* All of text as a number; errors call it `what`. */
std::int64_t parse_integer(const std::string &what, const std::string &text);
double parse_real(const std::string &what, const std::string &text);

} // namespace bench

#endif // ATTREE_BENCH_ATTNCASE_FILE_H
