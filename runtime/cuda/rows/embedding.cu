#include "cuda/launch.cuh"
#include "cuda/rows/embedding.h"
#include "cuda/rows/row.cuh"
#include "cuda/rows/token_position.cuh"

namespace packhorse::cuda {
namespace {

// Blocks that a multiprocessor must have room for: registers are capped to that, because rows from
// all over a table need many warps waiting for them at once.
template <int kThreads, int kVectors>
constexpr int kLeastBlocks = kThreads == 512 ? 1
                             : kVectors < 4  ? 5
                                             : 4;

// Tokens that a group of a large batch goes through: looking up where a token's rows lie is a chain
// of dependent loads, which the lanes of a warp do for as many tokens together.
int tokens_of_group(int64_t tokens) { return tokens >= 16384 ? 8 : 4; }

/// The rows that make one token, by their index in the tables; of tables there are.
struct TokenIds {
  int word = 0;
  int position = 0;
  int type = 0;

  /// What the batch gives for `token`.
  __device__ void read(const EmbedArgs& args, int64_t token) {
    word = args.ids[token];
    if (args.type.data != nullptr && args.type_ids != nullptr) type = args.type_ids[token];
    if (args.position_ids != nullptr) position = args.position_ids[token];
  }

  /// All of it, by one lane.
  __device__ void look_up(const EmbedArgs& args, int64_t token, int sequences) {
    read(args, token);
    if (args.position_ids == nullptr && args.position.data != nullptr) {
      position = position_in_sequence(args.batch, sequences, static_cast<int>(token));
    }
    position += static_cast<int>(args.position_offset);
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
__device__ void embed_token(const EmbedArgs& args, int64_t token, const TokenIds& ids, int columns,
                            float* scratch) {
  Row<T, kThreads, kVectors, 3> sources;
  sources.load(0, table_row<T>(args.word, ids.word), columns);
  sources.load(1, table_row<T>(args.position, ids.position), columns);
  sources.load(2, table_row<T>(args.type, ids.type), columns);
  SummedRow<T, kThreads, kVectors, 3> row[1];
  row[0].set(sources);
  T* out = static_cast<T*>(args.out.data) + token * args.out.row_stride;
  normalize_rows<kThreads, kVectors>(row, args.norm, WeightInMemory(args.norm), columns, scratch,
                                     [&](int, int column, const float (&value)[kVectorSize]) {
                                       store_vector(out + column, value);
                                     });
}

/// Brings gamma and beta into the L2 cache, a block once.
__device__ void prefetch_weight(const NormWeight& weight, int columns) {
  constexpr int kLine = 32;  // floats of a cache line
  for (const float* from : {weight.gamma, weight.beta}) {
    const int column = static_cast<int>(threadIdx.x) * kLine;
    if (from == nullptr || column >= columns) continue;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + column));
  }
}

// For small batches: a group per token, and everything that does not depend on something else is
// asked for at once.
template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kLeastBlocks<kThreads, kVectors>)
    embed_few_kernel(const __grid_constant__ EmbedArgs args) {
  __shared__ float scratch[64];
  const int columns = static_cast<int>(args.out.shape[1]);
  prefetch_weight(args.norm, columns);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t token = int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads;
  if (token >= args.batch.num_tokens) return;
  const int lane = threadIdx.x % 32;
  TokenIds ids;
  ids.read(args, token);
  const int32_t begin = args.batch.cu_seqlens[min(int64_t{lane}, args.batch.num_sequences)];
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  if (args.position_ids == nullptr) {
    const int at = static_cast<int>(token);
    if (counts.sequences <= 32) {
      const unsigned started = __ballot_sync(kFullWarp, lane < counts.sequences && begin <= at);
      ids.position = at - __shfl_sync(kFullWarp, begin, max(__popc(started) - 1, 0));
    } else {
      const auto begin_of = [&](int i) { return args.batch.cu_seqlens[i]; };
      ids.position = at - begin_of(warp_search(counts.sequences, at, begin_of));
    }
  }
  ids.position += static_cast<int>(args.position_offset);
  embed_token<T, kThreads, kVectors>(args, token, ids, columns, scratch);
}

template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kLeastBlocks<kThreads, kVectors>)
    embed_kernel(const __grid_constant__ EmbedArgs args, int tokens) {
  __shared__ float scratch[2][64];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const int columns = static_cast<int>(args.out.shape[1]);
  const int64_t first =
      (int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads) * tokens;
  if (first >= counts.tokens) return;
  const int here = static_cast<int>(min(int64_t{tokens}, counts.tokens - first));
  const int lane = threadIdx.x % 32;
  TokenIds ids;
  if (lane < here) ids.look_up(args, first + lane, counts.sequences);

  for (int token = 0; token < here; ++token) {
    // Every other turn has scratch of its own: the last turn's may still be read.
    embed_token<T, kThreads, kVectors>(args, first + token, ids.of_lane(token), columns,
                                       scratch[token % 2]);
  }
}

template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    embed_folded_kernel(const __grid_constant__ EmbedArgs args) {
  __shared__ float scratch[64];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const int64_t token = blockIdx.x;
  if (token >= counts.tokens) return;
  TokenIds ids;
  ids.look_up(args, token, counts.sequences);
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

void launch_embed(const EmbedArgs& args, cudaStream_t stream) {
  const int64_t tokens = args.batch.num_tokens;
  if (tokens == 0) return;
  dispatch_dtype(args.out.dtype, [&]<class T>() {
    dispatch_row(args.out.shape[1], [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0 || kVectors > 4) {
        launch_kernel(embed_folded_kernel<T>, dim3(static_cast<unsigned>(tokens)), kFoldThreads, 0,
                      stream, args);
      } else {
        const bool few = tokens * args.out.shape[1] <= kFewElements;
        const int group = few ? 1 : tokens_of_group(tokens);
        const int block = group * kBlockGroups<kThreads>;
        const dim3 blocks(static_cast<unsigned>((tokens + block - 1) / block));
        if (few) {
          launch_kernel(embed_few_kernel<T, kThreads, kVectors>, blocks, kBlockThreads<kThreads>, 0,
                        stream, args);
        } else {
          launch_kernel(embed_kernel<T, kThreads, kVectors>, blocks, kBlockThreads<kThreads>, 0,
                        stream, args, group);
        }
      }
    });
  });
}

}  // namespace packhorse::cuda
