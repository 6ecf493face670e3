// Kernels of embed_patches, in which a warp has a row of `out`, and of probe_attention, in which a
// block has one head of one sequence.
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/token_position.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/patches/patches.h"
#include "ops/grid_taps.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Adds this lane's eight columns of the position of a cell to `sums`. Called by whole warps; lanes
/// that are not `inside` have no columns.
template <class T>
__device__ void add_position(const GridTable& positions, const GridTaps& down,
                             const GridTaps& across, int column, bool inside,
                             float (&sums)[kVectorSize]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const table = static_cast<const T*>(positions.table.data) + column;
  for (int64_t i = down.first(); i < down.end(); ++i) {
    const float outer = down.weight(i);
    if (outer == 0) continue;
    const int64_t row = down.cell(i) * positions.columns;
    // A lane computes the weight of one of 32 neighbouring taps.
    for (int64_t first = across.first(); first < across.end(); first += 32) {
      const float held = first + lane < across.end() ? across.weight(first + lane) : 0;
      const int count = static_cast<int>(min(int64_t{32}, across.end() - first));
      for (int j = 0; j < count; ++j) {
        const float weight = outer * __shfl_sync(kFullWarp, held, j);
        if (weight == 0 || !inside) continue;
        float values[kVectorSize];
        load_vector(values, table + (row + across.cell(first + j)) * positions.table.row_stride);
#pragma unroll
        for (int v = 0; v < kVectorSize; ++v) sums[v] = __fmaf_rn(weight, values[v], sums[v]);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    embed_patches_kernel(const __grid_constant__ EmbedPatchesArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  const int32_t* const begins = args.batch.cu_seqlens;
  const int sequence = warp_search(counts.sequences, token, [&](int i) { return begins[i]; });
  const int place = token - begins[sequence];
  const int prefix = args.prefix.data == nullptr ? 0 : static_cast<int>(args.prefix.shape[0]);
  int with_rows = 0;  // sequences up to and with this one that have rows, and so a prefix
  for (int i = lane; i <= sequence; i += 32) with_rows += begins[i + 1] > begins[i] ? 1 : 0;
  with_rows = __reduce_add_sync(kFullWarp, with_rows);

  const bool of_prefix = place < prefix;
  const TensorView& source = of_prefix ? args.prefix : args.x;
  const int64_t row = of_prefix ? place : token - int64_t{with_rows} * prefix;
  const T* const from = static_cast<const T*>(source.data) + row * source.row_stride;
  T* const out = static_cast<T*>(args.out.data) + token * args.out.row_stride;
  const int columns = static_cast<int>(args.out.shape[1]);
  if (of_prefix || args.positions.table.data == nullptr) {
    for (int c = lane * kVectorSize; c < columns; c += 32 * kVectorSize) {
      *reinterpret_cast<uint4*>(out + c) = *reinterpret_cast<const uint4*>(from + c);
    }
    return;
  }
  const GridTable& positions = args.positions;
  const int grid_rows = args.grids[2 * sequence];
  const int grid_columns = args.grids[2 * sequence + 1];
  const int cell = place - prefix;
  const GridTaps down(positions.resize, positions.rows, grid_rows, cell / grid_columns);
  const GridTaps across(positions.resize, positions.columns, grid_columns, cell % grid_columns);
  for (int first = 0; first < columns; first += 32 * kVectorSize) {
    const int column = first + lane * kVectorSize;
    const bool inside = column < columns;
    float sums[kVectorSize] = {};
    add_position<T>(positions, down, across, column, inside, sums);
    if (!inside) continue;
    add_vector(sums, from + column);
    store_vector(out + column, sums);
  }
}

/// Softmax of the keys so far, and the sum of their values: a lane has every 32nd column.
template <int kOwn>
struct Attended {
  float largest = -INFINITY;
  float total = 0;
  float sums[kOwn] = {};
};

/// kOwn: columns of a head for each lane, at most. A warp takes every kWarps-th key.
template <class T, int kOwn>
__global__ void __launch_bounds__(kThreads)
    probe_attention_kernel(const __grid_constant__ ProbeAttentionArgs args) {
  __shared__ float shared_sums[kWarps][32 * kOwn];
  __shared__ float2 states[kWarps];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int heads = static_cast<int>(args.num_heads);
  const int width = static_cast<int>(args.head_dim);
  const int sequence = static_cast<int>(blockIdx.x) / heads;
  const int head = static_cast<int>(blockIdx.x) % heads;
  if (sequence >= TokenCounts(args.batch).sequences) return;
  const int begin = args.batch.cu_seqlens[sequence];
  const int end = args.batch.cu_seqlens[sequence + 1];
  float query[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = lane + 32 * i;
    query[i] = column < width ? args.query[head * width + column] * args.scale : 0;
  }
  // Calls body(i, number) for this lane's columns of a row's head.
  const auto for_own = [&](const TensorView& rows, int token, auto body) {
    const T* const row = static_cast<const T*>(rows.data) + token * rows.row_stride + head * width;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int column = lane + 32 * i;
      if (column < width) body(i, to_float(row[column]));
    }
  };
  Attended<kOwn> own;
  for (int token = begin + warp; token < end; token += kWarps) {
    float score = 0;
    for_own(args.keys, token, [&](int i, float key) { score = __fmaf_rn(query[i], key, score); });
    score = warp_sum(score);
    const float largest = fmaxf(own.largest, score);
    const float shrink = expf(own.largest - largest);
    const float weight = expf(score - largest);
    own.largest = largest;
    own.total = __fmaf_rn(own.total, shrink, weight);
    for_own(args.values, token, [&](int i, float value) {
      own.sums[i] = __fmaf_rn(own.sums[i], shrink, weight * value);
    });
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) shared_sums[warp][lane + 32 * i] = own.sums[i];
  if (lane == 0) states[warp] = {own.largest, own.total};
  __syncthreads();

  T* const out = static_cast<T*>(args.out.data) + sequence * args.out.row_stride;
  float largest = -INFINITY;
#pragma unroll
  for (const float2& state : states) largest = fmaxf(largest, state.x);
  for (int column = static_cast<int>(threadIdx.x); column < width; column += kThreads) {
    float total = 0;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (states[w].y == 0) continue;  // a warp without keys
      const float factor = expf(states[w].x - largest);
      total = __fmaf_rn(states[w].y, factor, total);
      sum = __fmaf_rn(shared_sums[w][column], factor, sum);
    }
    out[head * width + column] = Element<T>::from(begin == end ? 0 : sum / total);
  }
  if (head + 1 < heads) return;
  for (int column = heads * width + static_cast<int>(threadIdx.x); column < args.out.shape[1];
       column += kThreads) {
    out[column] = Element<T>::from(0);
  }
}

}  // namespace

void launch_embed_patches(const EmbedPatchesArgs& args, const KernelStream& stream) {
  if (args.batch.num_tokens == 0) return;
  dispatch_dtype(args.out.dtype, [&]<class T>() {
    launch_kernel(embed_patches_kernel<T>, block_count(args.batch.num_tokens, kWarps), kThreads, 0,
                  stream, args);
  });
}

void launch_probe_attention(const ProbeAttentionArgs& args, const KernelStream& stream) {
  if (args.batch.num_sequences == 0) return;
  const unsigned blocks = block_count(args.batch.num_sequences * args.num_heads, 1);
  dispatch_dtype(args.out.dtype, [&]<class T>() {
    constexpr int kMost = static_cast<int>(kMostProbeColumns) / 32;
    if (args.head_dim <= 128) {
      launch_kernel(probe_attention_kernel<T, 4>, blocks, kThreads, 0, stream, args);
    } else {
      launch_kernel(probe_attention_kernel<T, kMost>, blocks, kThreads, 0, stream, args);
    }
  });
}

}  // namespace packhorse::cuda
