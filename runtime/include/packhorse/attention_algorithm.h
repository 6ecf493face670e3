// How a CUDA device computes attention: what a caller may ask for by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "packhorse/export.h"

namespace packhorse {

/// Every algorithm computes the same attention, with scores, softmax and sums in float32. Results
/// of two algorithms differ by rounding; the bits of one depend on a sequence alone, never on the
/// batch.
enum class AttentionAlgorithm : uint8_t {
  /// kHopper where the device and the layer allow it, else kOnline.
  kAuto,
  /// wgmma and TMA, online softmax: compute capability 9.0.
  kHopper,
  /// Online softmax with mma.sync: compute capability 8.0 and up, every layer.
  kOnline,
  /// ByteTransformer's fused attention for short sequences (arXiv 2210.03052, section III-E): whole
  /// score rows on chip for sequences of at most 384 keys. Longer sequences take kOnline.
  kShort,
  /// ByteTransformer's fused attention for long sequences: two grouped GEMMs with the softmax split
  /// between them, unpadded scores in memory, for sequences of at most 1024 keys. Longer sequences
  /// take kOnline.
  kGrouped,
  /// ByteTransformer's own choice: kShort up to 384 keys, kGrouped up to 1024, kOnline beyond.
  kByteTransformer,
};

/// "auto", "hopper", "online", "short", "grouped" or "bytetransformer".
PACKHORSE_API const char* name_of(AttentionAlgorithm algorithm);
/// Inverse of `name_of`. Throws InvalidArgument that starts with `what` and lists the names.
PACKHORSE_API AttentionAlgorithm parse_attention_algorithm(std::string_view name,
                                                           std::string_view what);

}  // namespace packhorse
