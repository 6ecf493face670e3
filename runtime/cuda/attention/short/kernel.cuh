// Attention over sequences of up to kWarpTokens tokens: one warp computes one head of one sequence,
// from the first load to the last store, without shared memory and without waiting for another
// warp.
//
// Queries, keys and values go from global memory straight to the registers in which mma.m16n8k16
// (PTX ISA, "Matrix Fragments for mma.m16n8k16") takes them, by loads of 16 bytes. Two choices of
// order make that possible; lane = 4 g + c, with g from 0 to 7 and c from 0 to 3:
//
// - The columns of Q and K, over which scores are summed. A lane loads the columns 32 i + 8 c to 32
//   i + 8 c + 7 of its rows, which are four pairs. Pairs 0 and 1 serve as its k slots (2 c, 2 c +
//   1) and (2 c + 8, 2 c + 9) of product 2 i, pairs 2 and 3 of product 2 i + 1. Q and K share this
//   order, so every column of Q is multiplied by the same column of K.
// - The columns of V, which are those of the output. A panel has kPanel columns and kPanel / 8
//   products. Column kSpan n + j of a panel, where kSpan = kPanel / 8, is column n of product j. So
//   a lane loads kSpan neighbouring columns of the four keys of its slots, and pairs two keys by a
//   byte permutation. Its output is 2 kSpan neighbouring columns of two rows, from column 2 kSpan c
//   on, stored 16 bytes at a time.
//
// Keys keep their order in the product of probabilities and values: k slots (2 c, 2 c + 1) and (2 c
// + 8, 2 c + 9) are the keys of these numbers, as the scores lie in registers.
#pragma once

#include "cuda/attention/limits.h"
#include "cuda/attention/portable/scores.cuh"
#include "cuda/common/float8.cuh"

namespace packhorse::cuda {

/// Compile-time sizes of the warp kernels. Heads have up to kDim columns: 32, 64 or 128. The
/// additive term takes registers, so with it fewer blocks share an SM.
template <int kDim, bool kTerm>
struct WarpTraits {
  static constexpr int kWarps = 4;  // warps of a block, which work independently
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = (kDim <= 32 ? 5 : kDim == 64 ? 4 : 3) - (kTerm ? 1 : 0);
  static constexpr int kPanel = kDim < 64 ? kDim : 64;
  static constexpr int kPanels = kDim / kPanel;
  static constexpr int kSpan = kPanel / 8;
  static constexpr int kKeyBlocks = kWarpTokens / 8;
  static constexpr int kWords = kSpan / 2;  // 32-bit words of kSpan columns
};

/// Loads kWords neighbouring words, 8 or 16 bytes, or zeros where not `inside`.
template <int kWords>
__device__ void load_words(uint32_t (&to)[kWords], const void* from, bool inside) {
  static_assert(kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    const uint4 v = inside ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
  } else {
    const uint2 v = inside ? *static_cast<const uint2*>(from) : make_uint2(0, 0);
    to[0] = v.x;
    to[1] = v.y;
  }
}

/// One head of one sequence, computed by one warp.
template <class T, int kDim, bool kTerm, bool kFloat8>
struct WarpAttention {
  using Traits = WarpTraits<kDim, kTerm>;
  static constexpr int kGroups = kDim / 32;  // groups of 32 columns of Q and K
  static constexpr int kBlocks = Traits::kKeyBlocks;
  static constexpr int kSpan = Traits::kSpan;

  const PortableParams& params;
  const QueryTile tile;  // all rows of the sequence
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int c = static_cast<int>(threadIdx.x) % 4;

  __device__ WarpAttention(const PortableParams& params, const Sequence& sequence, int head)
      : params(params), tile{sequence, head, 0} {}

  /// Registers of 16 queries, of all keys, and of the values of one panel. Rows past the sequence
  /// and columns past the head are zeros.
  struct Operands {
    uint32_t q[2][kGroups][4];        // rows g and g + 8
    uint32_t k[kBlocks][kGroups][4];  // key 8 n + g of each block n
    /// Keys 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of each 16.
    uint32_t v[kBlocks / 2][4][Traits::kWords];
  };

  __device__ void load_queries(Operands& to, int first) const {
    const AttentionArgs& args = params.args;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + g + 8 * half;
      const T* from = params.q<T>(tile) + row * args.q.row_stride + 8 * c;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        load_words(to.q[half][i], from + 32 * i,
                   row < tile.sequence.q_length && 32 * i + 8 * c < args.head_dim);
      }
    }
  }

  __device__ void load_keys(Operands& to) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const int key = 8 * n + g;
      const T* from = params.k<T>(tile, key) + 8 * c;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        load_words(to.k[n][i], from + 32 * i,
                   key < tile.sequence.k_length && 32 * i + 8 * c < params.args.head_dim);
      }
    }
  }

  /// Loads one panel of values, with zeros past the sequence, since 0 x NaN would be NaN.
  __device__ void load_values(Operands& to, int panel) const {
    const int column = panel * Traits::kPanel + g * kSpan;
#pragma unroll
    for (int step = 0; step < kBlocks / 2; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 16 * step + 2 * c + i / 2 * 8 + i % 2;
        load_words(to.v[step][i], params.v<T>(tile, key) + column,
                   key < tile.sequence.k_length && column < params.args.head_dim);
      }
    }
  }

  /// scores = Q K^T. Scores of blocks of keys that lie past the sequence stay as they are.
  __device__ void multiply_keys(float (&scores)[kBlocks][4], const Operands& from) const {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if (8 * n >= tile.sequence.k_length) break;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const uint32_t (&k)[4] = from.k[n][i];
#pragma unroll
        for (int x = 0; x < 4; x += 2) {
          const Fragment a = {
              {from.q[0][i][x], from.q[1][i][x], from.q[0][i][x + 1], from.q[1][i][x + 1]}};
          mma<T>(scores[n], a, k[x], k[x + 1]);
        }
      }
    }
  }

  /// Adds the additive term, and sets the scores of keys that a row does not see to -infinity.
  __device__ void finish_scores(float (&scores)[kBlocks][4], int first) const {
    const Sequence& s = tile.sequence;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = s.k_length - s.q_length + first + g + 8 * half;
      const int low = position - params.window.left;
      const int high = min(s.k_length - 1, position + params.window.right);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const int key = 8 * n + 2 * c + x;
          float& score = scores[n][2 * half + x];
          if (kTerm && key < s.k_length) score = with_term(score, key - position);
          if (key < low || key > high) score = -INFINITY;
        }
      }
    }
  }

  __device__ float with_term(float score, int offset) const {
    const AttentionArgs& args = params.args;
    const float scale = args.scale;
    if (args.term.kind == ScoreTermKind::kAlibi) {
      const float slope = -args.term.slopes[tile.head];
      return __fmaf_rn(score, scale, slope * static_cast<float>(abs(offset)));
    }
    const int bucket = relative_bucket(args.term, offset);
    return __fmaf_rn(score, scale, args.term.table[bucket * args.num_heads + tile.head]);
  }

  /// Turns scores into 2^(scale (score - maximum of the row)), and returns 1 / sum of the two rows,
  /// or 0 for a row that sees no key.
  __device__ float2 softmax(float (&scores)[kBlocks][4]) const {
    const float scale = kTerm ? kLog2e : kLog2e * params.args.scale;
    const float2 maxima = row_maxima(scores);
    const float offset[2] = {__fmul_rn(maxima.x == -INFINITY ? 0 : maxima.x, scale),
                             __fmul_rn(maxima.y == -INFINITY ? 0 : maxima.y, scale)};
    float sums[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[n][e] = fast_exp2(__fmaf_rn(scores[n][e], scale, -offset[e / 2]));
        sums[e / 2] = __fadd_rn(sums[e / 2], scores[n][e]);
      }
    }
    return {inverse_or_zero(quad_sum(sums[0])), inverse_or_zero(quad_sum(sums[1]))};
  }

  /// out = P V for the columns of the panel whose values are in `from`.
  __device__ void multiply_values(float (&out)[kSpan][4], const Fragment (&p)[kBlocks / 2],
                                  const Operands& from) const {
#pragma unroll
    for (int step = 0; step < kBlocks / 2; ++step) {
      if (16 * step >= tile.sequence.k_length) break;
      const auto& v = from.v[step];
#pragma unroll
      for (int j = 0; j < kSpan; ++j) {
        const unsigned halves = j % 2 == 0 ? 0x5410 : 0x7632;
        mma<T>(out[j], p[step], __byte_perm(v[0][j / 2], v[1][j / 2], halves),
               __byte_perm(v[2][j / 2], v[3][j / 2], halves));
      }
    }
  }

  /// Stores the columns of one panel of a lane's two rows.
  __device__ void store(const float (&out)[kSpan][4], float2 factors, int first, int panel) const {
    const AttentionArgs& args = params.args;
    const int column = panel * Traits::kPanel + 2 * kSpan * c;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + g + 8 * half;
      if (row >= tile.sequence.q_length) continue;
      const float factor = half == 0 ? factors.x : factors.y;
      const auto value = [&](int i) { return out[i % kSpan][2 * half + i / kSpan]; };
      const int64_t at =
          (tile.sequence.q_begin + row) * args.out.row_stride + tile.head * args.head_dim + column;
      if constexpr (kFloat8) {
        if (column >= args.head_dim) continue;  // head_dim is a multiple of 16
        const float scaled = factor * params.out_factor;
        uint32_t words[kSpan / 2];
#pragma unroll
        for (int i = 0; i < kSpan / 2; ++i) {
          words[i] = pack_float8(value(4 * i) * scaled, value(4 * i + 1) * scaled) |
                     static_cast<uint32_t>(
                         pack_float8(value(4 * i + 2) * scaled, value(4 * i + 3) * scaled))
                         << 16;
        }
        auto* to = static_cast<unsigned char*>(args.out.data) + at;
        if constexpr (kSpan == 8) {
          *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
        } else {
          *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2 * kSpan; i += kVectorSize) {
          if (column + i >= args.head_dim) continue;
          float vector[kVectorSize];
#pragma unroll
          for (int e = 0; e < kVectorSize; ++e) vector[e] = value(i + e) * factor;
          store_vector(static_cast<T*>(args.out.data) + at + i, vector);
        }
      }
    }
  }

  /// Computes 16 queries at a time. Their loads, except values of a second panel, are issued before
  /// the first product, so that latencies overlap. The next 16 queries find keys and values in the
  /// L1 cache.
  __device__ void run() const {
    for (int first = 0; first < tile.sequence.q_length; first += 16) {
      Operands operands;
      load_queries(operands, first);
      load_keys(operands);
      load_values(operands, 0);
      float scores[kBlocks][4] = {};
      multiply_keys(scores, operands);
      finish_scores(scores, first);
      const float2 factors = softmax(scores);
      Fragment p[kBlocks / 2];
#pragma unroll
      for (int i = 0; i < kBlocks / 2; ++i) p[i] = pack_a<T>(scores[2 * i], scores[2 * i + 1]);
#pragma unroll
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        if (panel > 0) load_values(operands, panel);
        float out[kSpan][4] = {};
        multiply_values(out, p, operands);
        store(out, factors, first, panel);
      }
    }
  }
};

/// The grid is persistent: warp w of n takes the heads w, w + n, w + 2 n, ... of all sequences, in
/// the batch's order. Longer sequences are left to another kernel.
template <class T, int kDim, bool kTerm, bool kFloat8>
__global__ void __launch_bounds__(WarpTraits<kDim, kTerm>::kThreads,
                                  WarpTraits<kDim, kTerm>::kBlocksPerSm)
    warp_attention_kernel(const __grid_constant__ PortableParams params) {
  constexpr int kWarps = WarpTraits<kDim, kTerm>::kWarps;
  const int heads = params.args.num_heads;
  const int step = static_cast<int>(gridDim.x) * kWarps;
  const int first = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int sequences = params.sequences();
  int index = first / heads;
  int head = first % heads;
  // Offsets of the next sequence, loaded while this one is computed.
  Sequence next{};
  if (index < sequences) next = params.sequence(index);
  wait_for_previous_kernel();
  let_next_kernel_start();
  while (index < sequences) {
    const Sequence sequence = next;
    const int its_head = head;
    index += step / heads;
    head += step % heads;
    if (head >= heads) {
      head -= heads;
      ++index;
    }
    if (index < sequences) next = params.sequence(index);
    if (computed_by_warps(sequence.q_length, sequence.k_length)) {
      WarpAttention<T, kDim, kTerm, kFloat8>(params, sequence, its_head).run();
    }
  }
}

}  // namespace packhorse::cuda
