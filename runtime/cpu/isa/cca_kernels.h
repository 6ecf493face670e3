// Tasks of the vector kernel of compressed convolutional attention.
#pragma once

#include <stdint.h>

namespace packhorse::cpu {

/// The most rows of a CcaHead.
inline constexpr int kCcaRows = 48;

/// One head of queries or keys of CcaArgs, of up to kCcaRows tokens.
struct CcaHead {
  /// [rows, depthwise_width + grouped_width - 1] where the latents of a token and of those before
  /// it begin, oldest first; null: they are zeros.
  const void* const* taps = nullptr;
  int rows = 0;
  int depthwise_width = 0, grouped_width = 0;
  int head_dim = 0;
  int64_t column = 0;                // where the head begins in the latents
  const float* depthwise = nullptr;  // the head's columns; rows are depthwise_stride apart
  int64_t depthwise_stride = 0;
  const float* depthwise_bias = nullptr;  // the head's columns
  const void* grouped = nullptr;          // [grouped_width * head_dim, head_dim] of the head
  const float* grouped_bias = nullptr;    // the head's columns
  /// The mean of the head and of the mean of these heads, one after the other, is added.
  int64_t others_column = 0;
  int num_others = 0;
  float length = 0;                 // norm of the head before its rotation
  const float* rotation = nullptr;  // rows of cosines and sines, [pairs] each
  int64_t rotation_stride = 0;
  int pairs = 0;
  void* out = nullptr;  // the head's columns of the first token
  int64_t out_stride = 0;
  float* scratch = nullptr;  // convolve_scratch_floats
};

/// Inputs of the second convolution, and the sums of rows.
inline constexpr int64_t convolve_scratch_floats(int64_t head_dim, int64_t grouped_width) {
  return kCcaRows * (grouped_width + 1) * head_dim;
}

}  // namespace packhorse::cpu
