#include "image/file_bytes.h"

#include <algorithm>
#include <array>

namespace packhorse::image {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint32_t kNone = uint32_t{1} << 24;  // above the 24 bits of four characters

/// For each character its 6 bits, `shift` bits further up.
constexpr std::array<uint32_t, 256> table(int shift) {
  std::array<uint32_t, 256> made{};
  made.fill(kNone);
  for (size_t i = 0; i < kAlphabet.size(); ++i) {
    made[static_cast<unsigned char>(kAlphabet[i])] = static_cast<uint32_t>(i) << shift;
  }
  return made;
}

constexpr std::array<std::array<uint32_t, 256>, 4> kTables = {table(18), table(12), table(6),
                                                              table(0)};

/// The 24 bits of four characters, or something of at least kNone.
uint32_t bits_of(const char* four) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 4; ++i) bits |= kTables[i][static_cast<unsigned char>(four[i])];
  return bits;
}

size_t padding_of(std::string_view text) {
  if (text.size() < 4 || text.back() != '=') return 0;
  return text[text.size() - 2] == '=' ? 2 : 1;
}

}  // namespace

size_t base64_bytes(std::string_view text) { return text.size() / 4 * 3 - padding_of(text); }

bool decode_base64(std::string_view text, uint8_t* out) {
  if (text.size() % 4 != 0) return false;
  const size_t padding = padding_of(text);
  const size_t whole = text.size() / 4 - (padding > 0 ? 1 : 0);
  uint32_t all = 0;
  for (size_t i = 0; i < whole; ++i) {
    const uint32_t bits = bits_of(text.data() + 4 * i);
    all |= bits;
    out[3 * i] = static_cast<uint8_t>(bits >> 16 & 0xff);
    out[3 * i + 1] = static_cast<uint8_t>(bits >> 8 & 0xff);
    out[3 * i + 2] = static_cast<uint8_t>(bits & 0xff);
  }
  if (padding > 0) {
    std::array<char, 4> last = {'A', 'A', 'A', 'A'};
    std::copy_n(text.end() - 4, 4 - padding, last.begin());
    const uint32_t bits = bits_of(last.data());
    all |= bits;
    out[3 * whole] = static_cast<uint8_t>(bits >> 16 & 0xff);
    if (padding == 1) out[3 * whole + 1] = static_cast<uint8_t>(bits >> 8 & 0xff);
  }
  return all < kNone;
}

int64_t count_scans(std::span<const uint8_t> file) {
  int64_t count = 0;
  for (size_t i = 1; i < file.size(); ++i) {
    count += static_cast<int64_t>(file[i - 1] == 0xff && file[i] == 0xda);
  }
  return count;
}

}  // namespace packhorse::image
