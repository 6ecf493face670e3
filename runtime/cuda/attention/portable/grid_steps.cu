// Resizes the tables of score terms to the grids of a batch.
#include "cuda/attention/portable/grid_steps.cuh"
#include "cuda/attention/portable/softmax.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/token_position.cuh"
#include "ops/grid_taps.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 128;

// Writes the table of head blockIdx.y for sequence blockIdx.x.
__global__ void __launch_bounds__(kThreads)
    grid_steps_kernel(const __grid_constant__ AttentionArgs args, float* tables) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int sequence = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (sequence >= TokenCounts(args.keys).sequences) return;
  const int begin = args.keys.cu_seqlens[sequence];
  const int length = args.keys.cu_seqlens[sequence + 1] - begin;
  if (length == 0) return;
  const ScoreTerm& term = args.term;
  const int grid[2] = {term.grids[2 * sequence], term.grids[2 * sequence + 1]};
  float* const out = grid_table(tables, begin, length, head, args.num_heads);
  if (threadIdx.x < 2) out[threadIdx.x] = __int_as_float(grid[threadIdx.x]);
  const int rows = 2 * term.grid_rows - 1, columns = 2 * term.grid_columns - 1;
  const int to_rows = 2 * grid[0] - 1, to_columns = 2 * grid[1] - 1;
  const auto number = [&](int64_t step) { return term.table[step * args.num_heads + head]; };
  const int steps = to_rows * to_columns;
  for (int i = static_cast<int>(threadIdx.x); i < steps + 3; i += kThreads) {
    float value;
    if (i < steps) {
      const StepBetween down(i / to_columns, rows, to_rows);
      const StepBetween across(i % to_columns, columns, to_columns);
      const auto mixed = [&](int64_t row) {
        return (1.0f - across.weight) * number(row * columns + across.low) +
               across.weight * number(row * columns + across.high);
      };
      value = (1.0f - down.weight) * mixed(down.low) + down.weight * mixed(down.high);
    } else {
      value = number(int64_t{rows} * columns + (i - steps));
    }
    out[kGridHeader + i] = value * kLog2e;
  }
}

}  // namespace

void launch_grid_steps(const AttentionArgs& args, float* tables, const KernelStream& stream) {
  launch_kernel(
      grid_steps_kernel,
      dim3(static_cast<unsigned>(args.keys.num_sequences), static_cast<unsigned>(args.num_heads)),
      kThreads, 0, stream, args, tables);
}

}  // namespace packhorse::cuda
