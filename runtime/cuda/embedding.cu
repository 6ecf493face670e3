#include "cuda/check.h"
#include "cuda/embedding.h"
#include "cuda/row.cuh"
#include "cuda/token_position.cuh"

namespace packhorse::cuda {
namespace {

// Blocks that a multiprocessor must have room for: registers are capped to that, because rows from
// all over a table need many warps waiting for them at once.
template <int kThreads, int kVectors>
constexpr int kLeastBlocks = kThreads == 512 ? 2
                             : kVectors < 4  ? 8
                                             : 6;

// Tokens that a group goes through, for a batch of this many: looking up where a token's rows lie
// is a chain of dependent loads, which the lanes of a warp do for as many tokens together. A small
// batch is spread over more groups instead.
int tokens_of_group(int64_t tokens) { return tokens >= 16384 ? 8 : tokens >= 4096 ? 4 : 2; }

__device__ int clamp_id(int id, const TensorView& table, DeviceStatus::Code code, int64_t token,
                        DeviceStatus* status) {
  const int limit = static_cast<int>(table.shape[0]);
  if (id >= 0 && id < limit) return id;
  if (atomicCAS_system(&status->code, DeviceStatus::kFine, code) == DeviceStatus::kFine) {
    status->index = static_cast<int>(token);
    status->found = id;
    status->limit = limit;
  }
  return min(max(id, 0), limit - 1);
}

/// The rows that make one token, by their index in the tables; of tables there are.
struct TokenIds {
  int word = 0;
  int position = 0;
  int type = 0;

  __device__ void look_up(const EmbedArgs& args, int64_t token, int sequences,
                          DeviceStatus* status) {
    word = clamp_id(args.ids[token], args.word, DeviceStatus::kWordId, token, status);
    if (args.type.data != nullptr) {
      type = args.type_ids == nullptr ? 0 : args.type_ids[token];
      type = clamp_id(type, args.type, DeviceStatus::kTypeId, token, status);
    }
    if (args.position.data != nullptr) {
      position = args.position_ids != nullptr
                     ? args.position_ids[token]
                     : position_in_sequence(args.batch, sequences, static_cast<int>(token));
      position = clamp_id(position + static_cast<int>(args.position_offset), args.position,
                          DeviceStatus::kPositionId, token, status);
    }
  }

  /// Those of another lane.
  __device__ TokenIds of_lane(int lane) const {
    return {__shfl_sync(kFullWarp, word, lane), __shfl_sync(kFullWarp, position, lane),
            __shfl_sync(kFullWarp, type, lane)};
  }
};

/// Null where there is no such table.
template <class T>
__device__ const T* table_row(const TensorView& table, int id) {
  return table.data == nullptr ? nullptr
                               : static_cast<const T*>(table.data) + id * table.row_stride;
}

template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kLeastBlocks<kThreads, kVectors>)
    embed_kernel(const __grid_constant__ EmbedArgs args, int tokens, DeviceStatus* status) {
  __shared__ float scratch[2][64];
  const TokenCounts counts(args.batch);
  const int columns = static_cast<int>(args.out.shape[1]);
  const int64_t first =
      (int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads) * tokens;
  if (first >= counts.tokens) return;
  const int here = static_cast<int>(min(int64_t{tokens}, counts.tokens - first));
  const int lane = threadIdx.x % 32;
  TokenIds ids;
  if (lane < here) ids.look_up(args, first + lane, counts.sequences, status);

  for (int token = 0; token < here; ++token) {
    const TokenIds at = ids.of_lane(token);
    Row<T, kThreads, kVectors, 3> sources;
    sources.load(0, table_row<T>(args.word, at.word), columns);
    sources.load(1, table_row<T>(args.position, at.position), columns);
    sources.load(2, table_row<T>(args.type, at.type), columns);
    SummedRow<T, kThreads, kVectors, 3> row[1];
    row[0].set(sources);
    T* out = static_cast<T*>(args.out.data) + (first + token) * args.out.row_stride;
    // Every other turn has scratch of its own: the last turn's may still be read.
    normalize_rows<kThreads, kVectors>(row, args.norm, columns, scratch[token % 2],
                                       [&](int, int column, const float (&value)[kVectorSize]) {
                                         store_vector(out + column, value);
                                       });
  }
}

template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    embed_folded_kernel(const __grid_constant__ EmbedArgs args, DeviceStatus* status) {
  __shared__ float scratch[64];
  const TokenCounts counts(args.batch);
  const int64_t token = blockIdx.x;
  if (token >= counts.tokens) return;
  TokenIds ids;
  ids.look_up(args, token, counts.sequences, status);
  const T* word = table_row<T>(args.word, ids.word);
  const T* position = table_row<T>(args.position, ids.position);
  const T* type = table_row<T>(args.type, ids.type);
  fold_row(
      static_cast<int>(args.out.shape[1]),
      [&](float (&value)[kVectorSize], int column) {
        add_vector(value, word + column);
        if (position != nullptr) add_vector(value, position + column);
        if (type != nullptr) add_vector(value, type + column);
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
        const int group = tokens_of_group(tokens);
        const int block = group * kBlockGroups<kThreads>;
        const auto blocks = static_cast<unsigned>((tokens + block - 1) / block);
        embed_kernel<T, kThreads, kVectors>
            <<<blocks, kBlockThreads<kThreads>, 0, stream>>>(args, group, status);
      }
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
