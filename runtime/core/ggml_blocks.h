// Blocks of GGUF files: values that are quantised with scales of their own (BlockKind).
//
// Layouts are those of ggml (ggml-common.h, ggml-quants.c). A row is a sequence of blocks, and a
// block holds some groups of neighbouring values, each with one scale and perhaps one minimum. A
// value stands for scale * (q - zero), or with minima for scale * q + minimum, where products and
// sums are rounded to float32 as ggml rounds them.
#pragma once

#include <cstdint>

#include "packhorse/weight_source.h"

namespace packhorse {

/// Form of the values of a kind. Values in groups of 16, and those of five and six bits, are held
/// in eight, moved so that their zero is in the middle.
struct BlockForm {
  int32_t elements = 0;  // values of a block
  int32_t bytes = 0;     // bytes of a block
  int32_t bits = 0;      // bits of q: 4 or 8
  int32_t group = 0;     // values that have one scale
  bool minima = false;
};

BlockForm form_of(BlockKind kind);
/// "Q4_0", "Q6_K" and so on.
const char* name_of(BlockKind kind);

/// Reads `count` blocks: q, uint8 [elements], and bits of float16 of scales and minima, [groups]
/// each. `minima` may be null where there are none. Scales and minima of the K kinds are products,
/// which are rounded to float16; those of other kinds are exact.
void read_blocks(BlockKind kind, const uint8_t* from, int64_t count, uint8_t* values,
                 uint16_t* scales, uint16_t* minima);

/// Writes the values of `count` blocks, [elements]. Scales and minima may be anything, NaN, too.
void decode_blocks(BlockKind kind, const uint8_t* from, int64_t count, float* to);

}  // namespace packhorse
