// Bytes of image files as they come within texts of JSON, and before they are decoded. Nothing here
// needs the interpreter lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace packhorse {
namespace base64 {

inline constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
inline constexpr uint32_t kNone = uint32_t{1} << 24;  // above the 24 bits of four characters

using Table = std::array<uint32_t, 256>;

/// For each character its 6 bits, `shift` bits further up.
constexpr Table table(int shift) {
  Table made{};
  made.fill(kNone);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    made[static_cast<unsigned char>(kAlphabet[i])] = static_cast<uint32_t>(i) << shift;
  }
  return made;
}

inline constexpr std::array<Table, 4> kTables = {table(18), table(12), table(6), table(0)};

/// The 24 bits of four characters, or something of at least kNone.
inline uint32_t bits_of(const char* four) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 4; ++i) bits |= kTables[i][static_cast<unsigned char>(four[i])];
  return bits;
}

inline size_t padding_of(std::string_view text) {
  if (text.size() < 4 || text.back() != '=') return 0;
  return text[text.size() - 2] == '=' ? 2 : 1;
}

/// Bytes that `text` stands for, if it is base64 with its padding (RFC 4648, section 4).
inline size_t size_of(std::string_view text) { return text.size() / 4 * 3 - padding_of(text); }

/// Writes `size_of(text)` bytes to `out`. False where `text` has a length that is no multiple of
/// four, or characters that are not of the alphabet; what was written is then of no use.
inline bool decode(std::string_view text, uint8_t* out) {
  if (text.size() % 4 != 0) return false;
  const size_t padding = padding_of(text);
  const size_t whole = text.size() / 4 - (padding > 0 ? 1 : 0);
  uint32_t all = 0;
  const auto byte = [](uint32_t bits, int shift) {
    return static_cast<uint8_t>(bits >> shift & 0xff);
  };
  for (size_t i = 0; i < whole; ++i) {
    const uint32_t bits = bits_of(text.data() + 4 * i);
    all |= bits;
    out[3 * i] = byte(bits, 16);
    out[3 * i + 1] = byte(bits, 8);
    out[3 * i + 2] = byte(bits, 0);
  }
  if (padding > 0) {
    std::array<char, 4> last = {'A', 'A', 'A', 'A'};
    std::copy_n(text.end() - 4, 4 - padding, last.begin());
    const uint32_t bits = bits_of(last.data());
    all |= bits;
    out[3 * whole] = byte(bits, 16);
    if (padding == 1) out[3 * whole + 1] = byte(bits, 8);
  }
  return all < kNone;
}

}  // namespace base64

/// True if a text of JSON with these characters has exactly these: none is an escape, a control
/// character or one beyond ASCII.
inline bool is_plain(std::string_view text) {
  uint8_t wrong = 0;  // as wide as what is read, so that a vector takes as many of both
  for (const char one : text) {
    const auto byte = static_cast<uint8_t>(one);
    wrong |= static_cast<uint8_t>(byte < ' ') | static_cast<uint8_t>(byte >= 0x7f) |
             static_cast<uint8_t>(byte == '\\');
  }
  return wrong == 0;
}

/// The plain texts of at least `least` characters in JSON, each as {begin, end} between its
/// quotes. What is no JSON has texts, too: every second quote that is not escaped ends one.
inline std::vector<std::pair<size_t, size_t>> long_texts(std::string_view json, size_t least) {
  std::vector<std::pair<size_t, size_t>> found;
  size_t at = 0;
  while ((at = json.find('"', at)) != std::string_view::npos) {
    const size_t begin = at + 1;
    size_t end = begin;
    while ((end = json.find('"', end)) != std::string_view::npos) {
      const size_t last = json.find_last_not_of('\\', end - 1);
      if ((end - last) % 2 == 1) break;  // no backslash before it, or pairs of them
      ++end;
    }
    if (end == std::string_view::npos) break;
    if (end - begin >= least && is_plain(json.substr(begin, end - begin))) {
      found.emplace_back(begin, end);
    }
    at = end + 1;
  }
  return found;
}

/// Counts FF DA, which begins each scan of a JPEG file: a decoder reads the whole image for each.
inline int64_t count_scans(std::span<const uint8_t> file) {
  int64_t count = 0;
  const uint8_t* const end = file.data() + file.size();
  for (const uint8_t* at = file.data(); end - at > 1; ++at) {
    at = static_cast<const uint8_t*>(std::memchr(at, 0xff, static_cast<size_t>(end - at - 1)));
    if (at == nullptr) break;
    count += static_cast<int64_t>(at[1] == 0xda);
  }
  return count;
}

}  // namespace packhorse
