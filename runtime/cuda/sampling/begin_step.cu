// Completes the inputs of a step of generation: a block for each sequence.
#include "cuda/common/launch.cuh"
#include "cuda/sampling/sampling.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    begin_step_kernel(const __grid_constant__ BeginStepArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int sequence = static_cast<int>(blockIdx.x);
  if (args.batch.counts != nullptr && sequence >= args.batch.counts[1]) return;
  const int begin = args.page_begins[sequence];
  const int count = args.page_begins[sequence + 1] - begin;
  int32_t* row = args.table + sequence * args.table_stride;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    row[i] = args.pages[begin + i];
  }
  if (threadIdx.x != 0) return;
  int32_t& id = args.ids[args.batch.cu_seqlens[sequence + 1] - 1];
  const int source = args.sources[sequence];
  if (source >= 0) id = max(args.tokens[source], 0);
  const int slot = args.count_slots[sequence];
  if (slot >= 0) static_cast<int32_t*>(args.counts.data)[slot * args.counts.row_stride + id] += 1;
}

}  // namespace

void launch_begin_step(const BeginStepArgs& args, const KernelStream& stream) {
  launch_kernel(begin_step_kernel, dim3(static_cast<unsigned>(args.batch.num_sequences)), kThreads,
                0, stream, args);
}

}  // namespace packhorse::cuda
