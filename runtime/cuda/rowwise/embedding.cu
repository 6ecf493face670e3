// Kernels of the embedding: a row of `out` is the sum of a word's row, a position's row and a
// type's row, normalised. Small batches go to embed_skinny_kernel, which is made for latency, large
// ones to embed_kernel, which is made for bandwidth, and rows too wide for registers to
// embed_folded_kernel.
#include <array>

#include "cuda/common/launch.cuh"
#include "cuda/common/token_position.cuh"
#include "cuda/rowwise/async_copy.cuh"
#include "cuda/rowwise/row.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

// Blocks of embed_kernel for which the registers of an SM must suffice.
template <int kThreads, int kVectors>
constexpr int kResidentBlocks = kThreads == 512 ? 1 : std::array{8, 6, 4, 3}[kVectors - 1];

/// The indices of one token's rows in the tables of words, positions and types. An index into a
/// table that does not exist is not used.
struct TokenIds {
  int word = 0;
  int position = 0;
  int type = 0;

  /// Reads the indices that the batch gives for `token`.
  __device__ void read(const EmbedArgs& args, int64_t token) {
    word = args.ids == nullptr ? static_cast<int>(token) : args.ids[token];
    if (args.type.data != nullptr && args.type_ids != nullptr) type = args.type_ids[token];
    if (args.position_ids != nullptr) position = args.position_ids[token];
  }

  /// Finds all indices of `token`, with a position that counts tokens of EmbedArgs::skipped_id like
  /// any other. Each lane may call it for another token.
  __device__ void look_up(const EmbedArgs& args, int64_t token, int sequences) {
    read(args, token);
    if (args.position_ids == nullptr && args.position.data != nullptr) {
      position = position_in_sequence(args.batch, sequences, static_cast<int>(token));
    }
  }

  /// Returns the indices that another lane of the warp holds.
  __device__ TokenIds of_lane(int lane) const {
    return {__shfl_sync(kFullWarp, word, lane), __shfl_sync(kFullWarp, position, lane),
            __shfl_sync(kFullWarp, type, lane)};
  }
};

__device__ bool skips(const EmbedArgs& args) {
  return args.skipped_id >= 0 && args.position_ids == nullptr;
}

/// Counts the tokens of [begin, end) that are not skipped. Called by a whole warp with the same
/// range.
__device__ int count_tokens(const EmbedArgs& args, int begin, int end) {
  int count = 0;
  for (int i = begin + static_cast<int>(threadIdx.x % 32); i < end; i += 32) {
    count += args.ids[i] == args.skipped_id ? 0 : 1;
  }
  return __reduce_add_sync(kFullWarp, count);
}

/// Returns the position of `token`, not counting skipped tokens; `position` counts them. Skipped
/// tokens get -1. Called by a whole warp, for one token.
__device__ int position_of(const EmbedArgs& args, int token, int position) {
  if (args.ids[token] == args.skipped_id) return -1;
  return count_tokens(args, token - position, token);
}

/// Counterpart of position_of for a whole warp whose lane i has token first + i, of `here` tokens.
/// Only the first token's sequence can begin before `first`.
__device__ int position_of_lane(const EmbedArgs& args, int first, int here, int position) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int begin = first + lane - position;
  const bool counts = lane < here && args.ids[first + lane] != args.skipped_id;
  const unsigned counted = __ballot_sync(kFullWarp, counts);
  const int before = count_tokens(args, __shfl_sync(kFullWarp, begin, 0), first);
  const unsigned earlier = (1u << lane) - 1;
  if (!counts) return -1;
  if (begin < first) return before + __popc(counted & earlier);
  return __popc(counted & earlier & ~((1u << (begin - first)) - 1));
}

/// Returns row `id` of a table, or null where there is no such table.
template <class T>
__device__ const T* table_row(const TensorView& table, int id) {
  return table.data == nullptr ? nullptr
                               : static_cast<const T*>(table.data) + id * table.row_stride;
}

/// Brings gamma and beta into the L2 cache; called by a whole block.
__device__ void prefetch_weight(const NormWeight& weight, int columns) {
  constexpr int kLine = 32;  // floats of a cache line
  for (const float* from : {weight.gamma, weight.beta}) {
    const int column = static_cast<int>(threadIdx.x) * kLine;
    if (from == nullptr || column >= columns) continue;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + column));
  }
}

// Embeds small batches. A group of threads has one token, and all loads that do not depend on each
// other are issued at once.
template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kBlockThreads<kThreads>)
    embed_skinny_kernel(const __grid_constant__ EmbedArgs args) {
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
  if (skips(args)) ids.position = position_of(args, static_cast<int>(token), ids.position);
  ids.position += static_cast<int>(args.position_offset);
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

/// Slots in shared memory for this thread's parts of the rows of words and positions, for two
/// tokens in turn. Copies by cp.async take no registers. No thread reads the parts of another, so a
/// thread waits for its own copies only.
template <class T, int kThreads, int kVectors>
class IncomingRows {
 public:
  static constexpr int kSources = 2;
  static constexpr int kBytes = 2 * kSources * kVectors * kBlockThreads<kThreads> * 16;

  /// `shared` is the whole block's memory of kBytes bytes.
  __device__ explicit IncomingRows(uint4* shared) : parts_(shared + threadIdx.x) {}

  /// Starts copying a row to the slot of `turn` and `source`.
  __device__ void request(int turn, int source, const T* row, int columns) {
    if (row == nullptr) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = Row<T, kThreads, kVectors, 1>::column(v);
      if (column >= columns) continue;
      copy_async(part(turn, source, v), row + column);
    }
  }

  /// Reads a copied row as Row::load would read it from memory; zeros unless it `exists`.
  __device__ void get(uint4 (&bits)[kVectors], int turn, int source, bool exists,
                      int columns) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const bool there = exists && Row<T, kThreads, kVectors, 1>::column(v) < columns;
      bits[v] = there ? *part(turn, source, v) : make_uint4(0, 0, 0, 0);
    }
  }

 private:
  __device__ uint4* part(int turn, int source, int vector) const {
    const int place = (turn % 2 * kSources + source) * kVectors + vector;
    return parts_ + place * kBlockThreads<kThreads>;
  }

  uint4* parts_;
};

// Embeds large batches. The tokens are divided evenly among as many groups as the device has room
// for at once. A group keeps gamma and beta in registers, and copies the next token's rows while it
// normalises one. Finding the rows of a token is a chain of dependent loads, so each lane of a warp
// finds those of another token, 32 tokens at once. With kFull, rows fill all vectors of the
// threads, which saves a sixth of the instructions, by which narrow rows are bound.
template <class T, int kThreads, int kVectors, bool kFull>
__global__ void __launch_bounds__(kBlockThreads<kThreads>, kResidentBlocks<kThreads, kVectors>)
    embed_kernel(const __grid_constant__ EmbedArgs args) {
  using RowType = SummedRow<T, kThreads, kVectors, 3>;
  __shared__ float scratch[2][64];
  extern __shared__ uint4 incoming[];
  const int columns =
      kFull ? kThreads * kVectors * kVectorSize : static_cast<int>(args.out.shape[1]);
  const WeightInRegisters<RowType, kVectors> weight(args.norm,
                                                    columns);  // cuda/common/launch.cuh, rule 3
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TokenCounts counts(args.batch);
  const int64_t tokens = min(counts.tokens, args.batch.num_tokens);
  const int64_t group = int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads;
  const int64_t groups = int64_t{gridDim.x} * kBlockGroups<kThreads>;
  const int64_t begin = tokens * group / groups;
  const int64_t end = tokens * (group + 1) / groups;
  const int lane = threadIdx.x % 32;
  IncomingRows<T, kThreads, kVectors> rows(incoming);
  T* out = static_cast<T*>(args.out.data) + begin * args.out.row_stride;

  for (int64_t first = begin; first < end; first += 32) {
    const int here = static_cast<int>(min(int64_t{32}, end - first));
    TokenIds ids;
    if (lane < here) ids.look_up(args, first + lane, counts.sequences);
    if (skips(args)) {
      ids.position = position_of_lane(args, static_cast<int>(first), here, ids.position);
    }
    ids.position += static_cast<int>(args.position_offset);
    const auto request = [&](int token) {
      if (token < here) {
        const TokenIds wanted = ids.of_lane(token);
        rows.request(token, 0, table_row<T>(args.word, wanted.word), columns);
        rows.request(token, 1, table_row<T>(args.position, wanted.position), columns);
      }
      end_copies();
    };
    request(0);
    for (int token = 0; token < here; ++token) {
      Row<T, kThreads, kVectors, 3> sources;
      // There are few types, so their rows are in the L1 cache.
      sources.load(2, table_row<T>(args.type, __shfl_sync(kFullWarp, ids.type, token)), columns);
      request(token + 1);
      wait_for_copies<1>();
      rows.get(sources.bits[0], token, 0, true, columns);
      rows.get(sources.bits[1], token, 1, args.position.data != nullptr, columns);
      RowType row[1];
      row[0].set(sources);
      // Two scratches alternate, since that of the token before may still be read.
      normalize_rows<kThreads, kVectors>(row, args.norm, weight, columns, scratch[token % 2],
                                         [&](int, int column, const float (&value)[kVectorSize]) {
                                           store_vector(out + column, value);
                                         });
      out += args.out.row_stride;
    }
  }
}

// A block has one token, whose rows it reads up to three times (fold_row).
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
  if (skips(args)) ids.position = position_of(args, static_cast<int>(token), ids.position);
  ids.position += static_cast<int>(args.position_offset);
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
      args.norm,
      [&](const float (&value)[kVectorSize], int column) {
        store_vector(static_cast<T*>(args.out.data) + token * args.out.row_stride + column, value);
      },
      scratch);
}

/// Returns how many blocks of `kernel` an SM of the device has room for, with `bytes` of
/// dynamic shared memory each; 0 where a block cannot have so much.
template <class Kernel>
int resident_blocks(Kernel* kernel, int threads, int bytes, const DeviceCaps& caps) {
  int blocks = 0;
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  if (bytes + attributes.sharedSizeBytes > caps.shared_bytes) return 0;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, bytes));
  return blocks;
}

template <class T, int kThreads, int kVectors>
void launch_skinny(const EmbedArgs& args, const KernelStream& stream) {
  constexpr int kGroups = kBlockGroups<kThreads>;
  const dim3 blocks(block_count(args.batch.num_tokens, kGroups));
  launch_kernel(embed_skinny_kernel<T, kThreads, kVectors>, blocks, kBlockThreads<kThreads>, 0,
                stream, args);
}

template <class T, int kThreads, int kVectors, bool kFull>
void launch_many(const EmbedArgs& args, const KernelStream& stream) {
  constexpr int kBytes = IncomingRows<T, kThreads, kVectors>::kBytes;
  auto* kernel = embed_kernel<T, kThreads, kVectors, kFull>;
  const int blocks =
      stream.caps.sm_count * resident_blocks(kernel, kBlockThreads<kThreads>, kBytes, stream.caps);
  // Devices of compute capability 8.6 and 8.9 have too little shared memory for rows of more than
  // 12288 columns.
  if (blocks == 0) return launch_skinny<T, kThreads, kVectors>(args, stream);
  launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kBlockThreads<kThreads>, kBytes,
                stream, args);
}

}  // namespace

void launch_embed(const EmbedArgs& args, const KernelStream& stream) {
  const int64_t tokens = args.batch.num_tokens;
  const int64_t columns = args.out.shape[1];
  if (tokens == 0) return;
  dispatch_dtype(args.out.dtype, [&]<class T>() {
    dispatch_row(columns, [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0 || kVectors > 4) {
        launch_kernel(embed_folded_kernel<T>, dim3(static_cast<unsigned>(tokens)), kFoldThreads, 0,
                      stream, args);
      } else if (tokens * columns <= kSkinnyElements) {
        launch_skinny<T, kThreads, kVectors>(args, stream);
      } else if (columns == kThreads * kVectors * kVectorSize) {
        launch_many<T, kThreads, kVectors, true>(args, stream);
      } else {
        launch_many<T, kThreads, kVectors, false>(args, stream);
      }
    });
  });
}

}  // namespace packhorse::cuda
