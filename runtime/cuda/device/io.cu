// Kernels for batches that come from device memory and for results that stay there.
//
// load_batch_kernel checks a batch while it copies it into the arena: block 0 does the offsets, the
// other blocks do the tokens. What it finds wrong it reports to the host through page-locked
// memory, without stopping. It corrects the copy so that the kernels behind it stay inside their
// tables: ids are clamped, and a batch with bad offsets becomes an empty one.
#include <algorithm>

#include "core/math.h"
#include "cuda/device/check.h"
#include "cuda/device/io.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokensOfBlock = 4 * kThreads;

/// Reports a finding to the host. Of each run only the first one is kept. The threads agree on
/// which is first by an atomic in device memory, since few devices have atomics on host memory.
__device__ void report(const LoadBatchArgs& args, InputFinding::Code code, int64_t index,
                       int32_t found, int32_t before) {
  const uint32_t seen = *const_cast<volatile uint32_t*>(args.reported);
  if (seen == args.run || atomicCAS(args.reported, seen, args.run) != seen) return;
  *args.finding = {args.run, code, static_cast<int32_t>(index), found, before};
}

/// Checks and copies the id of one token. An id outside of [0, limit) is reported and clamped.
__device__ void load_ids(const LoadBatchArgs& args, const int32_t* from, int32_t* to, int64_t limit,
                         InputFinding::Code code, int64_t token) {
  if (from == nullptr) return;
  const int32_t id = from[token];
  if (id < 0 || id >= limit) report(args, code, token, id, 0);
  to[token] = static_cast<int32_t>(min(max(int64_t{id}, int64_t{0}), limit - 1));
}

/// Checks and copies the offsets, and writes the counts of tokens and sequences; called by all
/// threads of one block.
__device__ void load_offsets(const LoadBatchArgs& args) {
  const auto tokens = static_cast<int32_t>(args.from.num_tokens);
  const int64_t sequences = args.from.num_sequences;
  const int64_t size = args.limits.max_sequences + 1;
  // The offsets are copied before they are checked, so that nobody can change them after the check.
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    args.cu_seqlens[i] = i <= sequences ? args.from.cu_seqlens[i] : tokens;
  }
  __syncthreads();
  bool bad = false;
  const auto expect = [&](bool good, InputFinding::Code code, int64_t index, int32_t found,
                          int32_t before) {
    if (good) return;
    bad = true;
    report(args, code, index, found, before);
  };
  for (int64_t i = threadIdx.x; i <= sequences; i += kThreads) {
    const int32_t offset = args.cu_seqlens[i];
    const int32_t before = i == 0 ? 0 : args.cu_seqlens[i - 1];
    if (i == 0) expect(offset == 0, InputFinding::kFirstOffset, i, offset, 0);
    if (i > 0) expect(offset >= before, InputFinding::kDecreasingOffset, i, offset, before);
    if (i == sequences) expect(offset == tokens, InputFinding::kLastOffset, i, offset, before);
    expect(int64_t{offset} - before <= args.limits.max_seqlen, InputFinding::kLength, i, offset,
           before);
  }
  bad = __syncthreads_or(bad);
  if (bad) {
    for (int64_t i = threadIdx.x; i < size; i += kThreads) args.cu_seqlens[i] = 0;
  }
  if (threadIdx.x == 0) {
    args.counts[0] = bad ? 0 : tokens;
    args.counts[1] = bad ? 0 : static_cast<int32_t>(sequences);
  }
}

__global__ void __launch_bounds__(kThreads)
    load_batch_kernel(const __grid_constant__ LoadBatchArgs args) {
  if (blockIdx.x == 0) return load_offsets(args);
  const int64_t begin = int64_t{blockIdx.x - 1} * kTokensOfBlock;
  const int64_t end = min(begin + kTokensOfBlock, args.from.num_tokens);
  const DeviceTokens& from = args.from;
  for (int64_t t = begin + threadIdx.x; t < end; t += kThreads) {
    load_ids(args, from.ids, args.ids, args.limits.vocab_size, InputFinding::kIds, t);
    load_ids(args, from.type_ids, args.type_ids, args.limits.type_vocab_size,
             InputFinding::kTypeIds, t);
    load_ids(args, from.position_ids, args.position_ids, args.limits.num_positions,
             InputFinding::kPositionIds, t);
  }
}

}  // namespace

void launch_load_batch(const LoadBatchArgs& args, cudaStream_t stream) {
  const int64_t blocks = 1 + ceil_div(args.from.num_tokens, kTokensOfBlock);
  load_batch_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace packhorse::cuda
