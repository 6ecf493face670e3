#include "cuda/check.h"
#include "cuda/embedding.h"
#include "cuda/row.cuh"

namespace packhorse::cuda {
namespace {

// Tokens that a group works on at once.
template <int kThreads>
constexpr int kGroupRows = kThreads == 32 ? 2 : 1;

__device__ int clamp_id(int id, const TensorView& table, DeviceStatus::Code code, int64_t token,
                        DeviceStatus* status) {
  const int limit = static_cast<int>(table.shape[0]);
  if (id >= 0 && id < limit) return id;
  if (threadIdx.x % 32 == 0 && atomicCAS_system(&status->code, DeviceStatus::kFine, code) == 0) {
    status->index = static_cast<int>(token);
    status->found = id;
    status->limit = limit;
  }
  return min(max(id, 0), limit - 1);
}

template <class T>
__device__ const T* table_row(const TensorView& table, int id) {
  return static_cast<const T*>(table.data) + id * table.row_stride;
}

/// The three rows that make one token; null where there is no such table.
template <class T>
struct Sources {
  const T* word = nullptr;
  const T* position = nullptr;
  const T* type = nullptr;

  Sources() = default;
  // Called by whole warps: they search for the token's sequence together.
  __device__ Sources(const EmbedArgs& args, int64_t token, int sequences, DeviceStatus* status) {
    word = table_row<T>(args.word,
                        clamp_id(args.ids[token], args.word, DeviceStatus::kWordId, token, status));
    if (args.type.data != nullptr) {
      const int id = args.type_ids == nullptr ? 0 : args.type_ids[token];
      type = table_row<T>(args.type, clamp_id(id, args.type, DeviceStatus::kTypeId, token, status));
    }
    if (args.position.data == nullptr) return;
    int id = static_cast<int>(args.position_offset);
    if (args.position_ids != nullptr) {
      id += args.position_ids[token];
    } else {
      const int32_t* cu_seqlens = args.batch.cu_seqlens;
      const int at = static_cast<int>(token);
      id += at - cu_seqlens[warp_search(sequences, at, [&](int b) { return cu_seqlens[b]; })];
    }
    position = table_row<T>(args.position,
                            clamp_id(id, args.position, DeviceStatus::kPositionId, token, status));
  }
};

struct Counts {
  int64_t tokens;
  int sequences;
  __device__ explicit Counts(const BatchView& batch)
      : tokens(batch.counts == nullptr ? batch.num_tokens : batch.counts[0]),
        sequences(batch.counts == nullptr ? static_cast<int>(batch.num_sequences)
                                          : batch.counts[1]) {}
};

template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kThreads == 512 ? 2 : 1)
    embed_kernel(const __grid_constant__ EmbedArgs args, DeviceStatus* status) {
  constexpr int kRows = kGroupRows<kThreads>;
  __shared__ float scratch[kRows * 64];
  const Counts counts(args.batch);
  const int columns = static_cast<int>(args.out.shape[1]);
  const int64_t first =
      (int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads) * kRows;
  if (first >= counts.tokens) return;
  Row<T, kThreads, kVectors, 3> sources[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    Sources<T> from;
    if (first + r < counts.tokens) {
      from = Sources<T>(args, first + r, counts.sequences, status);
    }
    sources[r].load(0, from.word, columns);
    sources[r].load(1, from.position, columns);
    sources[r].load(2, from.type, columns);
  }
  SummedRow<T, kThreads, kVectors, 3> rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r].set(sources[r]);
  normalize_rows<kThreads, kVectors>(
      rows, args.norm, columns, scratch, [&](int r, int column, const float (&value)[kVectorSize]) {
        if (first + r >= counts.tokens) return;
        store_vector(static_cast<T*>(args.out.data) + (first + r) * args.out.row_stride + column,
                     value);
      });
}

template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    embed_folded_kernel(const __grid_constant__ EmbedArgs args, DeviceStatus* status) {
  __shared__ float scratch[64];
  const Counts counts(args.batch);
  const int64_t token = blockIdx.x;
  if (token >= counts.tokens) return;
  const Sources<T> from(args, token, counts.sequences, status);
  fold_row(
      static_cast<int>(args.out.shape[1]),
      [&](float (&value)[kVectorSize], int column) {
        add_vector(value, from.word + column);
        if (from.position != nullptr) add_vector(value, from.position + column);
        if (from.type != nullptr) add_vector(value, from.type + column);
      },
      args.norm, static_cast<T*>(args.out.data) + token * args.out.row_stride, scratch);
}

}  // namespace

void launch_embed(const EmbedArgs& args, DeviceStatus* status, cudaStream_t stream) {
  const int64_t tokens = args.batch.num_tokens;
  if (tokens == 0) return;
  dispatch_dtype(args.out.dtype, [&]<class T>() {
    dispatch_row(args.out.shape[1], [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0) {
        embed_folded_kernel<T>
            <<<static_cast<unsigned>(tokens), kFoldThreads, 0, stream>>>(args, status);
      } else {
        constexpr int kBlockRows = kBlockGroups<kThreads> * kGroupRows<kThreads>;
        const auto blocks = static_cast<unsigned>((tokens + kBlockRows - 1) / kBlockRows);
        embed_kernel<T, kThreads, kVectors>
            <<<blocks, kBlockThreads<kThreads>, 0, stream>>>(args, status);
      }
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
