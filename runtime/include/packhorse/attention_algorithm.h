// The algorithms by which a CUDA device can compute attention. A caller may choose one by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "packhorse/export.h"

namespace packhorse {

/// Every algorithm computes the same attention, with scores, softmax and sums in float32. The
/// results of two algorithms differ by rounding. The bits that one algorithm gives for a sequence
/// depend on that sequence alone, never on the rest of the batch.
enum class AttentionAlgorithm : uint8_t {
  /// kHopper if the device and the layer allow it, otherwise kOnline.
  kAuto,
  /// Online softmax with wgmma and TMA. It needs compute capability 9.0.
  kHopper,
  /// Online softmax with mma.sync. It needs compute capability 8.0 or higher and serves every
  /// layer.
  kOnline,
  /// ByteTransformer's fused attention for short sequences (arXiv 2210.03052, section III-E). It
  /// keeps whole rows of scores on chip and serves sequences of at most 384 keys; longer ones take
  /// kOnline.
  kShort,
  /// ByteTransformer's fused attention for long sequences: two grouped GEMMs, the softmax split
  /// between them, and unpadded scores in memory. It serves sequences of at most 1024 keys; longer
  /// ones take kOnline.
  kGrouped,
  /// ByteTransformer's own choice: kShort up to 384 keys, kGrouped up to 1024 keys, kOnline beyond.
  kByteTransformer,
};

/// Returns "auto", "hopper", "online", "short", "grouped" or "bytetransformer".
PACKHORSE_API const char* name_of(AttentionAlgorithm algorithm);
/// The inverse of `name_of`. For an unknown name it throws InvalidArgument, whose message starts
/// with `what` and lists the known names.
PACKHORSE_API AttentionAlgorithm parse_attention_algorithm(std::string_view name,
                                                           std::string_view what);

}  // namespace packhorse
