// Common parts of the two kernels of disentangled attention: their parameters, the copies of the
// tables' rows that a tile needs (its bands, see attention/disentangled/kernel.cuh), and the
// addition of staged terms to scores.
#pragma once

#include <limits>

#include "cuda/attention/portable/scores.cuh"
#include "cuda/device/check.h"

namespace packhorse::cuda {

struct DisentangledParams {
  PortableParams portable;  // all arguments except the term
  ScoreTerm term;
};

/// Launches a kernel. `grid` has a block for every query tile of every head.
template <class Traits>
void launch_disentangled(void (*kernel)(DisentangledParams), dim3 grid, const AttentionArgs& args,
                         const KernelStream& stream) {
  if (args.queries.num_tokens == 0 || args.queries.num_sequences == 0) return;
  DisentangledParams params{{args, key_window(args.mask), {0, std::numeric_limits<int32_t>::max()}},
                            args.term};
  params.portable.args.term = {};
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(Traits::kSharedBytes)));
  launch_kernel(kernel, grid, Traits::kThreads, Traits::kSharedBytes, stream, params);
}

/// Copies the rows of both tables of positions that one query tile needs.
template <class T>
struct Bands {
  const ScoreTerm& term;
  int column;  // first column of the head in the tables
  int head_dim;
  int lowest, highest;  // the distances i - j that occur between the tile's queries and any key

  __device__ Bands(const ScoreTerm& term, const QueryTile& tile, int head_dim, int rows)
      : term(term), column(tile.head * head_dim), head_dim(head_dim) {
    const int first = tile.sequence.k_length - tile.sequence.q_length + tile.row;
    lowest = first - (tile.sequence.k_length - 1);
    highest = first + min(rows, tile.sequence.q_length - tile.row) - 1;
  }

  /// Starts copying from both tables the rows of the distances [from, from + kRows). Distances that
  /// do not occur and missing tables give zeros.
  template <int kRows, int kThreads, class Layout>
  __device__ void fetch(T* keys, T* queries, int from) const {
    constexpr int kAcross = Layout::kColumns / kVectorSize;
    static_assert(kRows * kAcross % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kRows * kAcross / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = at / kAcross;
      const int here = at % kAcross * kVectorSize;
      const int distance = from + row;
      const bool inside = distance >= lowest && distance <= highest && here < head_dim;
      const int limited = min(max(distance, -term.slot_limit), term.slot_limit);
      const int64_t slot = inside ? __ldg(term.slots + limited + term.slot_limit) : 0;
      const int to = Layout::offset(row, here);
      copy(term.position_keys, slot, here, keys + to, inside);
      copy(term.position_queries, slot, here, queries + to, inside);
    }
  }

 private:
  __device__ void copy(const TensorView& table, int64_t slot, int here, T* to, bool inside) const {
    inside = inside && table.data != nullptr;
    const T* from = static_cast<const T*>(inside ? table.data : term.slots);
    copy_vector_async(to, inside ? from + slot * table.row_stride + column + here : from, inside);
  }
};

/// Adds a warp's 16 staged rows of 64 elements, which lie kPitch<kColumns> elements apart, to its
/// scores.
template <int kColumns, class T>
__device__ void add_staged(float (&scores)[8][4], const T* staged) {
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const Fragment f = load_a<kColumns>(staged, 0, n * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = to_float2(*reinterpret_cast<const typename Element<T>::Pair*>(&f.x[i]));
      scores[n + i / 2][i % 2 * 2] += pair.x;
      scores[n + i / 2][i % 2 * 2 + 1] += pair.y;
    }
  }
}

}  // namespace packhorse::cuda
