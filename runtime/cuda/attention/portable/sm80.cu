// Launches the portable attention kernels. Sequences up to the given limits go to the short and to
// the grouped kernels, the others to the online kernel; each kernel is launched over the whole
// batch and skips the other kernels' sequences.
#include <algorithm>
#include <limits>

#include "core/math.h"
#include "cuda/attention/bytetransformer/grouped_kernel.cuh"
#include "cuda/attention/bytetransformer/short_kernel.cuh"
#include "cuda/attention/portable/online_kernel.cuh"
#include "cuda/attention/portable/sm80.h"
#include "cuda/common/launch.cuh"
#include "cuda/device/check.h"

namespace packhorse::cuda {
namespace {

constexpr int64_t kScoresCap = int64_t{256} << 20;  // bytes of scores in global memory at once
// The widest head for which registers hold 32 queries per warp.
constexpr int kTwoGroupsHeadDim = 64;
constexpr int kTwoGroupsKeys = 512;          // most keys for which 64 queries per block are faster
constexpr int kBlocksPerMultiprocessor = 4;  // blocks in the grids of the grouped kernels

/// Calls launch.operator()<T, kDim>() with the smallest kDim that holds head_dim columns.
template <class Launch>
void dispatch_kernel(DType dtype, int64_t head_dim, Launch launch) {
  dispatch_dtype(dtype, [&]<class T>() {
    if (head_dim <= 32) return launch.template operator()<T, 32>();
    if (head_dim <= 64) return launch.template operator()<T, 64>();
    if (head_dim <= 128) return launch.template operator()<T, 128>();
    if (head_dim <= 256) return launch.template operator()<T, 256>();
    throw InvalidArgument(concat("head_dim ", head_dim, " is over 256"));
  });
}

// Returns the keys per row of scores of the grouped path: the longest sequence it may meet, rounded
// up to whole tiles, and never 0.
int64_t grouped_row_keys(int64_t max_seqlen_k, const PortableLimits& limits) {
  const int64_t keys = std::clamp<int64_t>(max_seqlen_k, 1, limits.grouped_keys);
  return round_up(keys, kGroupedTile);
}

// Returns the bytes of one head's scores, and of one (maximum, sum) per row and key tile.
int64_t grouped_head_bytes(int64_t num_tokens_q, int64_t row_keys) {
  return num_tokens_q * row_keys * 2 + num_tokens_q * (row_keys / kGroupedTile) * int64_t{8};
}

bool uses_grouped(int64_t max_seqlen_k, int64_t head_dim, const PortableLimits& limits) {
  return head_dim <= kGroupedHeadDim && max_seqlen_k > limits.short_keys &&
         limits.grouped_keys > limits.short_keys;
}

template <class Kernel>
void allow_shared_memory(Kernel kernel, size_t bytes) {
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
}

dim3 slab_grid(const AttentionArgs& args, int rows) {
  return {static_cast<unsigned>(slab_slots(args, rows)), static_cast<unsigned>(args.num_heads)};
}

template <class T, int kDim, int kTiles>
void launch_short(const PortableParams& params, const KernelStream& stream) {
  using Traits = ShortTraits<kDim, kTiles>;
  launch_kernel(short_attention_kernel<T, kDim, kTiles>, slab_grid(params.args, Traits::kRows),
                Traits::kThreads, Traits::kSharedBytes, stream, params);
}

template <class T, int kDim, int kGroups>
void launch_online(const PortableParams& params, const KernelStream& stream) {
  using Traits = OnlineTraits<kDim, kGroups>;
  launch_kernel(online_attention_kernel<T, kDim, kGroups>, slab_grid(params.args, Traits::kRows),
                Traits::kThreads, Traits::kSharedBytes, stream, params);
}

// Computes the scores of a few heads at a time, which bounds their memory. The grouping of heads
// changes no arithmetic.
template <class T, int kDim>
void launch_grouped(const PortableParams& params, const PortableLimits& limits,
                    const KernelStream& stream) {
  const AttentionArgs& args = params.args;
  const int64_t tokens = args.queries.num_tokens;
  const int64_t row_keys = grouped_row_keys(args.keys.max_seqlen, limits);
  const int64_t head_bytes = grouped_head_bytes(tokens, row_keys);
  const int64_t heads = std::clamp<int64_t>(kScoresCap / head_bytes, 1, args.num_heads);
  const auto blocks = static_cast<unsigned>(stream.caps.sm_count * kBlocksPerMultiprocessor);
  for (int64_t first = 0; first < args.num_heads; first += heads) {
    const int64_t count = std::min(heads, args.num_heads - first);
    auto* scores = static_cast<unsigned char*>(args.workspace);
    auto* tiles = reinterpret_cast<float2*>(scores + count * tokens * row_keys * 2);
    const GroupedScores work{params,
                             scores,
                             tiles,
                             static_cast<int32_t>(row_keys),
                             static_cast<int32_t>(first),
                             static_cast<int32_t>(count)};
    launch_kernel(grouped_scores_kernel<T, kDim>, dim3(blocks), kGroupedThreads,
                  ScoresTraits<kDim>::kSharedBytes, stream, work);
    launch_kernel(grouped_values_kernel<T, kDim>, dim3(blocks), kGroupedThreads,
                  ValuesTraits<kDim>::kSharedBytes, stream, work);
  }
}

}  // namespace

void prepare_attention_sm80() {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int head_dim : {32, 64, 128, 256}) {
      dispatch_kernel(dtype, head_dim, [&]<class T, int kDim>() {
        allow_shared_memory(online_attention_kernel<T, kDim, 1>,
                            OnlineTraits<kDim, 1>::kSharedBytes);
        if constexpr (kDim <= kTwoGroupsHeadDim) {
          allow_shared_memory(online_attention_kernel<T, kDim, 2>,
                              OnlineTraits<kDim, 2>::kSharedBytes);
        }
        if constexpr (kDim <= kGroupedHeadDim) {
          allow_shared_memory(short_attention_kernel<T, kDim, 1>,
                              ShortTraits<kDim, 1>::kSharedBytes);
          allow_shared_memory(short_attention_kernel<T, kDim, 3>,
                              ShortTraits<kDim, 3>::kSharedBytes);
          allow_shared_memory(grouped_scores_kernel<T, kDim>, ScoresTraits<kDim>::kSharedBytes);
          allow_shared_memory(grouped_values_kernel<T, kDim>, ValuesTraits<kDim>::kSharedBytes);
        }
      });
    }
  }
}

size_t attention_sm80_workspace(const AttentionArgs& args, const PortableLimits& limits) {
  const size_t tables = grid_steps_bytes(args);
  const int64_t longest = args.keys.max_seqlen;
  if (!uses_grouped(longest, args.head_dim, limits)) return tables;
  const int64_t head =
      grouped_head_bytes(args.queries.num_tokens, grouped_row_keys(longest, limits));
  return tables + static_cast<size_t>(std::min(head * args.num_heads, std::max(head, kScoresCap)));
}

void launch_attention_sm80(const AttentionArgs& args, const KernelStream& stream,
                           const PortableLimits& limits) {
  const int64_t tokens = args.queries.num_tokens;
  const int64_t longest = args.keys.max_seqlen;
  if (tokens == 0 || args.queries.num_sequences == 0) return;
  const size_t workspace = attention_sm80_workspace(args, limits);
  if (workspace > 0 && args.workspace == nullptr) {
    throw InvalidArgument(concat("attention: workspace of 0 bytes, ", workspace, " needed"));
  }
  PortableParams portable{args, key_window(args.mask), {}};
  if (args.term.kind == ScoreTermKind::kGrid) {
    auto* const tables = static_cast<float*>(args.workspace);
    launch_grid_steps(args, tables, stream);
    portable.grid_tables = tables;
    portable.args.workspace = static_cast<unsigned char*>(args.workspace) + grid_steps_bytes(args);
  }
  dispatch_kernel(args.q.dtype, args.head_dim, [&]<class T, int kDim>() {
    int32_t covered = -1;  // the kernels launched so far cover sequences up to this many keys
    if constexpr (kDim <= kGroupedHeadDim) {
      if (limits.short_keys >= 0) {
        portable.lengths = {0, limits.short_keys};
        if (longest <= ShortTraits<kDim, 1>::kKeys) {
          launch_short<T, kDim, 1>(portable, stream);
        } else {
          launch_short<T, kDim, 3>(portable, stream);
        }
        covered = limits.short_keys;
      }
      if (uses_grouped(longest, args.head_dim, limits)) {
        portable.lengths = {covered + 1, limits.grouped_keys};
        launch_grouped<T, kDim>(portable, limits, stream);
        covered = limits.grouped_keys;
      }
    }
    if (longest <= covered) return;
    portable.lengths = {covered + 1, std::numeric_limits<int32_t>::max()};
    if constexpr (kDim <= kTwoGroupsHeadDim) {
      if (longest > kTwoGroupsKeys) {
        return launch_online<T, kDim, 2>(portable, stream);
      }
    }
    launch_online<T, kDim, 1>(portable, stream);
  });
}

}  // namespace packhorse::cuda
