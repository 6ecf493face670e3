// The kernel of log-probabilities: a block has one row, which it reads three times, for its
// largest, for its sum and for its result.
#include <cmath>

#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    log_softmax_kernel(const __grid_constant__ LogSoftmaxArgs args) {
  __shared__ float scratch[2][32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t columns = args.x.shape[1];
  const T* x = static_cast<const T*>(args.x.data) + blockIdx.x * args.x.row_stride;
  float* out = static_cast<float*>(args.out.data) + blockIdx.x * args.out.row_stride;
  float largest[1] = {-INFINITY};
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    largest[0] = fmaxf(largest[0], to_float(x[i]));
  }
  group_max<kThreads>(largest, scratch[0]);
  float sum[1] = {};
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    sum[0] += expf(to_float(x[i]) - largest[0]);
  }
  group_sum<kThreads>(sum, scratch[1]);
  const float log_sum = logf(sum[0]);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    out[i] = to_float(x[i]) - largest[0] - log_sum;
  }
}

}  // namespace

void launch_log_softmax(const LogSoftmaxArgs& args, const KernelStream& stream) {
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(log_softmax_kernel<T>, block_count(args.x.shape[0], 1), kThreads, 0, stream,
                  args);
  });
}

}  // namespace packhorse::cuda
