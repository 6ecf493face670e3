#include "cuda/check.h"
#include "cuda/embedding.h"
#include "cuda/row.cuh"

namespace packhorse::cuda {
namespace {

constexpr int kWarpRows = 4;

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

// Row `id` of a table.
template <class T>
__device__ const T* row_of(const TensorView& table, int id) {
  return static_cast<const T*>(table.data) + id * table.row_stride;
}

/// The three rows that make one token; null where there is no such table.
template <class T>
struct Sources {
  const T* word;
  const T* position = nullptr;
  const T* type = nullptr;

  // Called by whole warps: they search for the token's sequence together.
  __device__ Sources(const EmbedArgs& args, int64_t token, int sequences, DeviceStatus* status) {
    word = row_of<T>(args.word,
                     clamp_id(args.ids[token], args.word, DeviceStatus::kWordId, token, status));
    if (args.position.data != nullptr) {
      int position_id;
      if (args.position_ids != nullptr) {
        position_id = args.position_ids[token];
      } else {
        const int32_t* cu_seqlens = args.batch.cu_seqlens;
        const int at = static_cast<int>(token);
        position_id =
            at - cu_seqlens[warp_search(sequences, at, [&](int b) { return cu_seqlens[b]; })];
      }
      position_id += static_cast<int>(args.position_offset);
      position = row_of<T>(args.position, clamp_id(position_id, args.position,
                                                   DeviceStatus::kPositionId, token, status));
    }
    if (args.type.data != nullptr) {
      const int type_id = args.type_ids == nullptr ? 0 : args.type_ids[token];
      type =
          row_of<T>(args.type, clamp_id(type_id, args.type, DeviceStatus::kTypeId, token, status));
    }
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
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarpRows : kThreads)
    embed_kernel(const __grid_constant__ EmbedArgs args, DeviceStatus* status) {
  __shared__ float scratch[64];
  const Counts counts(args.batch);
  const int64_t token =
      kThreads == 32 ? int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
  if (token >= counts.tokens) return;
  const Sources<T> from(args, token, counts.sequences, status);
  Row<kThreads, kVectors> values(static_cast<int>(args.out.shape[1]));
  values.add(from.word);
  if (from.position != nullptr) values.add(from.position);
  if (from.type != nullptr) values.add(from.type);
  values.normalize(args.norm, scratch);
  values.store(static_cast<T*>(args.out.data) + token * args.out.row_stride);
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
  const auto rows = static_cast<unsigned>(args.batch.num_tokens);
  if (rows == 0) return;
  dispatch_dtype(args.out.dtype, [&]<class T>() {
    dispatch_row(args.out.shape[1], [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0) {
        embed_folded_kernel<T><<<rows, kThreads, 0, stream>>>(args, status);
      } else if constexpr (kThreads == 32) {
        const unsigned blocks = (rows + kWarpRows - 1) / kWarpRows;
        embed_kernel<T, kThreads, kVectors><<<blocks, 32 * kWarpRows, 0, stream>>>(args, status);
      } else {
        embed_kernel<T, kThreads, kVectors><<<rows, kThreads, 0, stream>>>(args, status);
      }
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
