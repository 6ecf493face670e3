// Tasks of the vector kernels that resize images of 8 bits a channel (image/resize.h).
//
// Both passes see bytes in fours: a lane holds 4 neighbours along the pass, the lanes are across
// it. The horizontal pass has `rows` rows in its lanes and writes what the vertical pass reads.
// Where the vertical pass comes first, InterleaveRows makes what it reads.
#pragma once

#include <stdint.h>

namespace packhorse::cpu {

/// Brings bytes of the image to where the horizontal pass reads them:
/// out[quad][channel][row][4 columns], for the quads in [0, quads). Bytes of columns that the image
/// does not have are zeros.
struct PackPixels {
  const uint8_t* const* rows = nullptr;  // the image's, one for each row of the kernel
  uint8_t* out = nullptr;
  int64_t first_column = 0;  // that of the first quad
  int64_t columns = 0;       // the image's
  int64_t quads = 0;
  int channels = 0;  // 1 to 4 that are taken ...
  int pixel_stride =
      0;  // ... of a pixel of so many bytes: 4 for 3 channels, or as many as channels
};

/// out[byte][row] = rows[row][byte] of 4 rows of `bytes` bytes.
struct InterleaveRows {
  const uint8_t* const* rows = nullptr;
  uint8_t* out = nullptr;
  int64_t bytes = 0;
};

/// rows[row][byte] = from[byte][row], for the first `count` of 4 rows.
struct SeparateRows {
  const uint8_t* from = nullptr;
  uint8_t* const* rows = nullptr;
  int64_t bytes = 0;
  int count = 0;
};

/// Fixed-point weights of one output: those of `quads` times 4 neighbours, beginning with quad
/// `first`. They are 0 for neighbours that do not count.
struct Taps {
  int32_t first = 0;
  int32_t quads = 0;
  int64_t words = 0;  // where its weights begin, as encode_taps made them
};

struct FixedPoint {
  int shift = 0;        // bits behind the point
  bool narrow = false;  // weights have 16 bits, otherwise 24
};

/// out[row / 4][output * channels + channel][row % 4] = the weighted sum of a row's bytes, rounded
/// half up and clipped to a byte.
struct ResampleColumns {
  const uint8_t* packed = nullptr;  // from PackPixels
  int64_t first_quad = 0;           // that of `packed`
  const Taps* taps = nullptr;       // [outputs]
  const uint32_t* words = nullptr;
  FixedPoint point;
  int64_t outputs = 0;
  int channels = 0;
  uint8_t* out = nullptr;
  int64_t out_stride = 0;  // bytes from 4 rows to the next 4
};

/// out[column] = the weighted sum of that column's bytes over rows, rounded half up and clipped.
/// `columns` is a multiple of column_step.
struct ResampleRow {
  const uint8_t* fours = nullptr;  // [quads][columns][4 rows]
  int64_t stride = 0;              // bytes from one quad to the next
  int64_t quads = 0;
  const uint32_t* words = nullptr;
  FixedPoint point;
  int64_t columns = 0;
  uint8_t* out = nullptr;
};

struct ImageKernels {
  int rows = 0;         // that a horizontal pass does at once, a multiple of 4; 0: no such kernels
  int column_step = 0;  // columns that a vertical pass does at once
  int words[2] = {};    // 32-bit words of 4 weights, [narrow]
  void (*encode_taps)(const int32_t* weights, bool narrow, uint32_t* words) = nullptr;
  void (*pack_pixels)(const PackPixels&) = nullptr;
  void (*interleave_rows)(const InterleaveRows&) = nullptr;
  void (*separate_rows)(const SeparateRows&) = nullptr;
  void (*resample_columns)(const ResampleColumns&) = nullptr;
  void (*resample_row)(const ResampleRow&) = nullptr;
};

}  // namespace packhorse::cpu
