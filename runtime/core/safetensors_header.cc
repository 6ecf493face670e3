#include "core/safetensors_header.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "core/json.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr size_t kLengthBytes = 8;
// The limit is far above real headers, which take about a hundred bytes for each tensor. It is
// needed because parsed JSON takes far more memory than its text.
constexpr uint64_t kMaxHeaderBytes = 16 << 20;
constexpr size_t kMaxDepth = 3;  // {name: {"shape": [

/// The number of bits of every dtype of the format, including those that a session cannot use.
constexpr std::pair<std::string_view, uint64_t> kBitsOf[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32}, {"F32", 32}, {"I64", 64},    {"U64", 64},
    {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

class HeaderParser {
 public:
  HeaderParser(std::span<const char> file, const std::string& path) : file_(file), path_(path) {}

  std::vector<SafetensorsEntry> parse() {
    const std::string_view text = header_text();
    data_begin_ = kLengthBytes + text.size();
    const Json header = parse(text);
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, value] : header.object()) {
      if (name == "__metadata__") {
        check_metadata(value);
      } else {
        entries.push_back(entry(name, value));
      }
    }
    check_coverage(entries);
    return entries;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidArgument(concat(path_, ": not a valid safetensors file: ", parts...));
  }

  std::string_view header_text() const {
    if (file_.size() < kLengthBytes) {
      fail("found ", file_.size(), " bytes, expected at least ", kLengthBytes);
    }
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      length |= uint64_t{static_cast<unsigned char>(file_[i])} << (8 * i);
    }
    if (length > kMaxHeaderBytes) {
      fail("header of ", length, " bytes, expected at most ", kMaxHeaderBytes);
    }
    if (length > file_.size() - kLengthBytes) {
      fail("header of ", length, " bytes, but only ", file_.size() - kLengthBytes,
           " follow: the file is truncated");
    }
    const std::string_view text(file_.data() + kLengthBytes, length);
    if (!text.starts_with('{')) fail("the header does not begin with '{'");
    return text;
  }

  Json parse(std::string_view text) const {
    try {
      return parse_json(text, kMaxDepth, /*unique_names=*/true);
    } catch (const JsonError& error) {
      switch (error.reason()) {
        case JsonError::kDepth:
          fail("the header is nested too deeply");
        case JsonError::kDuplicate:
          fail("duplicate key ", quote(error.what()));
        case JsonError::kSyntax:
          break;
      }
      fail("the header is not JSON: ", error.what());
    }
  }

  void check_metadata(const Json& metadata) const {
    if (!metadata.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, value] : metadata.object()) {
      if (!value.is_string()) fail("__metadata__ entry ", quote(key), " is not a string");
    }
  }

  SafetensorsEntry entry(const std::string& name, const Json& value) const {
    if (!value.is_object()) fail("tensor ", quote(name), " is not an object");
    const Json* const dtype = value.find("dtype");
    const Json* const shape = value.find("shape");
    const Json* const data_offsets = value.find("data_offsets");
    if (value.object().size() != 3 || dtype == nullptr || shape == nullptr ||
        data_offsets == nullptr) {
      fail("tensor ", quote(name), " does not have exactly dtype, shape and data_offsets");
    }
    SafetensorsEntry entry{name, {}, {}, 0, 0};
    if (!dtype->is_string()) fail("tensor ", quote(name), ": dtype is not a string");
    entry.dtype = dtype->text();
    for (const int64_t extent : integers(name, "shape", *shape)) entry.shape.push_back(extent);

    const std::vector<int64_t> offsets = integers(name, "data_offsets", *data_offsets);
    if (offsets.size() != 2) {
      fail("tensor ", quote(name), ": found ", offsets.size(), " data_offsets, expected 2");
    }
    const size_t data_size = file_.size() - data_begin_;
    const auto begin = static_cast<size_t>(offsets[0]);
    const auto end = static_cast<size_t>(offsets[1]);
    if (begin > end || end > data_size) {
      fail("tensor ", quote(name), ": data_offsets [", begin, ", ", end, "] do not lie within the ",
           data_size, " bytes of data");
    }
    const uint64_t bytes = bytes_of(entry);
    if (end - begin != bytes) {
      fail("tensor ", quote(name), ": data_offsets hold ", end - begin,
           " bytes, but dtype and shape need ", bytes);
    }
    entry.begin = data_begin_ + begin;
    entry.end = data_begin_ + end;
    return entry;
  }

  std::vector<int64_t> integers(const std::string& name, const char* key, const Json& list) const {
    if (!list.is_array()) fail("tensor ", quote(name), ": ", key, " is not an array");
    std::vector<int64_t> numbers;
    for (const Json& number : list.array()) {
      if (!number.is_unsigned() ||
          number.number<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
        fail("tensor ", quote(name), ": ", key, " holds ", number.dump().substr(0, 40),
             ", expected integers from 0 to 2^63 - 1");
      }
      numbers.push_back(number.number<int64_t>());
    }
    return numbers;
  }

  uint64_t bytes_of(const SafetensorsEntry& entry) const {
    const auto* known =
        std::find_if(std::begin(kBitsOf), std::end(kBitsOf),
                     [&](const auto& candidate) { return candidate.first == entry.dtype; });
    if (known == std::end(kBitsOf)) {
      fail("tensor ", quote(entry.name), ": unknown dtype ", quote(entry.dtype));
    }
    // Extents of 0 are counted as 1, because products of the other extents, such as strides, must
    // not overflow either.
    uint64_t bits = known->second;
    bool empty = false;
    for (const int64_t extent : entry.shape) {
      empty |= extent == 0;
      if (__builtin_mul_overflow(bits, std::max<uint64_t>(1, extent), &bits)) {
        fail("tensor ", quote(entry.name), ": the product of its shape overflows");
      }
    }
    if (empty) bits = 0;
    if (bits % 8 != 0) fail("tensor ", quote(entry.name), " does not end at a whole byte");
    return bits / 8;
  }

  /// Sorts `entries` by their data, and checks that they cover all data exactly once.
  void check_coverage(std::vector<SafetensorsEntry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    size_t covered = data_begin_;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.begin < covered) {
        fail("tensor ", quote(entry.name), " overlaps the tensor before it by ",
             covered - entry.begin, " bytes");
      }
      if (entry.begin > covered) {
        fail("gap of ", entry.begin - covered, " bytes before tensor ", quote(entry.name));
      }
      covered = entry.end;
    }
    if (covered != file_.size()) {
      fail(file_.size() - covered, " bytes at the end belong to no tensor");
    }
  }

  std::span<const char> file_;
  const std::string& path_;
  size_t data_begin_ = 0;
};

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const char> file,
                                                       const std::string& path) {
  return HeaderParser(file, path).parse();
}

std::string quote(const std::string& name) {
  constexpr size_t kMaxLength = 120;
  std::string text = concat("'", std::string_view(name).substr(0, kMaxLength));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text + (name.size() > kMaxLength ? "...'" : "'");
}

}  // namespace packhorse
