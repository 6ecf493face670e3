#include "emulator/products.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "emulator/numbers.h"

namespace emulated {
namespace {

float signed_byte(uint32_t bits) { return static_cast<int8_t>(bits); }
float unsigned_byte(uint32_t bits) { return static_cast<float>(bits & 255u); }
float tf32_value(uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }

// The numbers of all patterns of up to 16 bits, so that none is converted twice.
const std::vector<float>& table_of(const Format& format) {
  static std::vector<std::pair<float (*)(uint32_t), std::vector<float>>> tables;
  for (const auto& [value, table] : tables) {
    if (value == format.value) return table;
  }
  std::vector<float> table(size_t{1} << format.bits);
  for (size_t i = 0; i < table.size(); ++i) table[i] = format.value(static_cast<uint32_t>(i));
  tables.reserve(16);
  return tables.emplace_back(format.value, std::move(table)).second;
}

}  // namespace

Format format_of(const Run& run, const std::string& name) {
  if (name == "f16") return {16, half_value};
  if (name == "bf16") return {16, bfloat_value};
  if (name == "e4m3") return {8, e4m3_value};
  if (name == "e5m2") return {8, e5m2_value};
  if (name == "tf32") return {32, tf32_value};
  if (name == "s8") return {8, signed_byte, true};
  if (name == "u8") return {8, unsigned_byte, true};
  run.fail("products of " + name + " are not emulated");
}

Decoder::Decoder(const Format& format)
    : format_(format), table_(format.bits == 32 ? nullptr : &table_of(format)) {}

void multiply_row(const ProductTile& tile, int row, int k, int n, double* sums) {
  std::fill(sums, sums + n, 0.0);
  for (int i = 0; i < k; ++i) {
    const double a = tile.a[row][i];
    const double* const b = tile.b[i];
    for (int j = 0; j < n; ++j) sums[j] += a * b[j];
  }
}

void decode_a(ProductTile& tile, const Decoder& decode, int bits, int lane,
              const uint32_t* registers) {
  const int each = 32 / bits;
  for (int r = 0; r < 4; ++r) {
    double* const row = tile.a[lane / 4 + (r & 1) * 8];
    const int column = lane % 4 * each + (r >> 1) * 4 * each;
    for (int e = 0; e < each; ++e) row[column + e] = decode(registers[r] >> (bits * e));
  }
}

}  // namespace emulated
