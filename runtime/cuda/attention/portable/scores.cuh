// Common parts of the portable attention kernels (compute capability 8.0 and later): the search for
// a block's slab of queries, and the scores and the output of one warp's tile.
//
// A block owns a slab: a tile of neighbouring queries of one head of one sequence. No row's bits
// depend on its neighbours in the batch, because tiles of keys are counted from the sequence's own
// start, rows past its end are read as zeros, and the choice between the kernels looks at the
// sequence's own length alone.
#pragma once

#include <algorithm>

#include "cuda/attention/attention.h"
#include "cuda/attention/portable/grid_steps.cuh"
#include "cuda/attention/portable/softmax.cuh"
#include "cuda/attention/relative_bucket.cuh"
#include "cuda/attention/varlen.cuh"
#include "cuda/common/launch.cuh"

namespace packhorse::cuda {

/// Sequences that a kernel computes: those with `min` <= number of keys <= `max`.
struct KeyLengths {
  int32_t min, max;
  __device__ bool contain(int32_t length) const { return min <= length && length <= max; }
};

/// The parameters of every portable kernel, with the addresses of a tile's rows.
struct PortableParams {
  AttentionArgs args;
  KeyWindow window;
  KeyLengths lengths;
  float out_factor = 0;                // multiplies results in e4m3: 1 / args.out_scale
  const float* grid_tables = nullptr;  // those of launch_grid_steps, for a term of grids

  __device__ int sequences() const {
    return args.queries.counts == nullptr ? static_cast<int>(args.queries.num_sequences)
                                          : args.queries.counts[1];
  }
  __device__ Sequence sequence(int index) const {
    const int32_t q = args.queries.cu_seqlens[index], k = args.keys.cu_seqlens[index];
    return {q, args.queries.cu_seqlens[index + 1] - q, k, args.keys.cu_seqlens[index + 1] - k};
  }
  __device__ int kv_head(int head) const { return head / (args.num_heads / args.num_kv_heads); }

  template <class T>
  __device__ const T* q(const QueryTile& tile) const {
    return static_cast<const T*>(args.q.data) +
           (tile.sequence.q_begin + tile.row) * args.q.row_stride + tile.head * args.head_dim;
  }
  template <class T>
  __device__ const T* k(const QueryTile& tile, int key) const {
    return static_cast<const T*>(args.k.data) + (tile.sequence.k_begin + key) * args.k.row_stride +
           kv_head(tile.head) * args.head_dim;
  }
  template <class T>
  __device__ const T* v(const QueryTile& tile, int key) const {
    return static_cast<const T*>(args.v.data) + (tile.sequence.k_begin + key) * args.v.row_stride +
           kv_head(tile.head) * args.head_dim;
  }
  template <class T>
  __device__ T* out(const QueryTile& tile) const {
    return static_cast<T*>(args.out.data) +
           (tile.sequence.q_begin + tile.row) * args.out.row_stride + tile.head * args.head_dim;
  }
};

/// Returns how many slots of `rows` queries a grid needs. The slabs of sequence b begin at slot
/// q_begin / rows + b. The slots of two sequences never overlap, so a block finds its slab by one
/// search in cu_seqlens; some slots stay empty.
inline int64_t slab_slots(const AttentionArgs& args, int rows) {
  return args.queries.num_tokens / rows + args.queries.num_sequences;
}

/// Finds the slab of slot blockIdx.x and head blockIdx.y. Returns false where the slot is empty or
/// another kernel computes the sequence. Called by whole warps.
template <int kRows>
__device__ bool find_slab(const PortableParams& params, QueryTile& slab) {
  const auto first_slot = [&](int b) { return params.args.queries.cu_seqlens[b] / kRows + b; };
  const int sequences = params.sequences();
  if (sequences == 0) return false;
  const int slot = static_cast<int>(blockIdx.x);
  const int index = warp_search(sequences, slot, first_slot);
  slab.sequence = params.sequence(index);
  slab.head = static_cast<int>(blockIdx.y);
  slab.row = (slot - first_slot(index)) * kRows;
  return slab.row < slab.sequence.q_length && params.lengths.contain(slab.sequence.k_length);
}

/// Multiplies by scale * log2(e), since the softmax is taken in base 2.
template <int kBlocks>
__device__ void scale_scores(float (&scores)[kBlocks][4], float scale) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] *= scale * kLog2e;
  }
}

/// Sets masked scores to -infinity. `position` is the position of the tile's first query among the
/// keys of its sequence, `key` that of the tile's first key.
template <int kBlocks>
__device__ void mask_scores(float (&scores)[kBlocks][4], KeyWindow window, int k_length,
                            int position, int key) {
  const AccumulatorPlace place;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int p = position + place.row + half * 8;
    const int low = p - window.left;
    const int high = min(k_length - 1, p + window.right);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const int at = key + n * 8 + place.column + e % 2;
        if (at < low || at > high) scores[n][e] = -INFINITY;
      }
    }
  }
}

/// Turns a tile of q.k into scores: scaled, with the additive term, and masked unless
/// `all_visible`. `slab` tells the sequence and the head.
template <int kBlocks>
__device__ void finish_scores(float (&scores)[kBlocks][4], const PortableParams& params,
                              const QueryTile& slab, int position, int key, bool all_visible) {
  const AccumulatorPlace place;
  const int head = slab.head;
  const ScoreTerm& term = params.args.term;
  scale_scores(scores, params.args.scale);
  if (term.kind == ScoreTermKind::kGrid) {
    const GridSteps grid(params.grid_tables, slab.sequence, head, params.args.num_heads);
    add_grid_steps(scores, grid, position, key);
  } else if (term.kind != ScoreTermKind::kNone) {
    const float slope = term.kind == ScoreTermKind::kAlibi ? term.slopes[head] * -kLog2e : 0;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int offset = key + n * 8 + place.column + e % 2 - (position + place.row + e / 2 * 8);
        if (term.kind == ScoreTermKind::kAlibi) {
          scores[n][e] += slope * static_cast<float>(abs(offset));
        } else {
          const int bucket = relative_bucket(term, offset);
          scores[n][e] += term.table[bucket * params.args.num_heads + head] * kLog2e;
        }
      }
    }
  }
  if (!all_visible) mask_scores(scores, params.window, slab.sequence.k_length, position, key);
}

/// Returns whether every query of a slab of `rows` rows sees all keys of [key, key + keys).
__device__ inline bool sees_all(const PortableParams& params, const QueryTile& slab, int rows,
                                int key, int keys) {
  const Sequence& s = slab.sequence;
  const int first = s.k_length - s.q_length + slab.row;
  const int last = first + min(rows, s.q_length - slab.row) - 1;
  return key >= last - params.window.left &&
         key + keys - 1 <= min(s.k_length - 1, first + params.window.right);
}

/// Writes this warp's 16 rows of the slab's output, multiplied by `factors` (x: a thread's upper
/// row, y: its lower row). The rows go through `staging`, this warp's 16 x kPitch<kDim> elements of
/// shared memory, so that stores to global memory are 16 bytes wide.
template <class T, int kDim>
__device__ void store_output(const PortableParams& params, const QueryTile& slab, int warp_row,
                             const float (&output)[kDim / 8][4], float2 factors, T* staging) {
  const AccumulatorPlace place;
  using Pair = typename Element<T>::Pair;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    T* at = staging + place.row * kPitch<kDim> + n * 8 + place.column;
    *reinterpret_cast<Pair*>(at) =
        Element<T>::pair(output[n][0] * factors.x, output[n][1] * factors.x);
    *reinterpret_cast<Pair*>(at + 8 * kPitch<kDim>) =
        Element<T>::pair(output[n][2] * factors.y, output[n][3] * factors.y);
  }
  __syncwarp();
  T* out = params.out<T>(slab);
  constexpr int kAcross = kDim / kVectorSize;
#pragma unroll
  for (int i = 0; i < 16 * kAcross / 32; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
    const int row = at / kAcross;
    const int column = at % kAcross * kVectorSize;
    if (slab.row + warp_row + row < slab.sequence.q_length && column < params.args.head_dim) {
      *reinterpret_cast<uint4*>(out + (warp_row + row) * params.args.out.row_stride + column) =
          *reinterpret_cast<const uint4*>(staging + row * kPitch<kDim> + column);
    }
  }
}

/// output += P V over kKeys keys. `p` holds the probabilities of kGroups groups of 16 queries, and
/// `v` points to the first key's row of values.
template <class T, int kDim, int kKeys, int kGroups>
__device__ void accumulate_output(float (&output)[kGroups][kDim / 8][4],
                                  const float (&p)[kGroups][kKeys / 8][4], const T* v) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    Fragment a[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) a[g] = pack_a<T>(p[g][2 * k], p[g][2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const Fragment b = load_b_transposed<kDim>(v, k * 16, n * 16);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        mma<T>(output[g][2 * n], a[g], b.x[0], b.x[1]);
        mma<T>(output[g][2 * n + 1], a[g], b.x[2], b.x[3]);
      }
    }
  }
}

/// scores += Q K^T for kGroups groups of 16 queries, whose rows begin at `queries`, and kKeys keys,
/// whose rows begin at `keys`.
template <class T, int kDim, int kKeys, int kGroups>
__device__ void accumulate_scores(float (&scores)[kGroups][kKeys / 8][4], const T* queries,
                                  const T* keys) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    Fragment a[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) a[g] = load_a<kDim>(queries, g * 16, k * 16);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      const Fragment b = load_b<kDim>(keys, n * 16, k * 16);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        mma<T>(scores[g][2 * n], a[g], b.x[0], b.x[1]);
        mma<T>(scores[g][2 * n + 1], a[g], b.x[2], b.x[3]);
      }
    }
  }
}

}  // namespace packhorse::cuda
