// Common parts of the products of tensor cores, mma.sync and wgmma.
//
// An instruction adds the exact sum of its products to each float32 of the accumulator, in
// ascending order of k and in float64, and rounds once. A device may round otherwise; but two
// kernels that issue the same instructions on the same numbers get the same bits here as there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/ptx.h"

namespace emulated {

/// A format of operands: its bits, and the number that such bits are.
struct Format {
  int bits = 16;
  float (*value)(uint32_t) = nullptr;
  bool integer = false;
};

/// The format of a PTX type, such as "f16"; fails where it has none.
Format format_of(const Run& run, const std::string& name);

/// Numbers of bits of a format, by a table.
class Decoder {
 public:
  explicit Decoder(const Format& format);
  double operator()(uint32_t bits) const {
    return table_ == nullptr ? format_.value(bits) : (*table_)[bits & ((1u << format_.bits) - 1)];
  }

 private:
  Format format_;
  const std::vector<float>* table_;
};

/// Operands of a product [16, n] = a [16, k] b [k, n].
struct ProductTile {
  double a[16][32];
  double b[32][256];
};

/// A row of the product: n sums over k in ascending order.
void multiply_row(const ProductTile& tile, int row, int k, int n, double* sums);

/// Puts a lane's four registers of A into the tile: register r holds 32 / bits neighbours of row
/// lane / 4 or the row eight below it, as the PTX ISA has it for mma.m16n8k16 and m16n8k32.
void decode_a(ProductTile& tile, const Decoder& decode, int bits, int lane,
              const uint32_t* registers);

}  // namespace emulated
