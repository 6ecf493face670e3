#include "cuda/launch.cuh"
#include "cuda/rotate.h"
#include "cuda/row.cuh"
#include "cuda/token_position.cuh"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 256;

/// Cosine and sine of one frequency for one token by each thread.
__global__ void __launch_bounds__(kThreads)
    rotation_kernel(const __grid_constant__ RotationArgs args, int pairs) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t token = index / pairs;
  const int j = static_cast<int>(index % pairs);
  const TokenCounts counts(args.batch);
  if (token >= counts.tokens) return;
  const int position =
      args.position_ids != nullptr
          ? args.position_ids[token]
          : position_in_sequence(args.batch, counts.sequences, static_cast<int>(token));
  float* out = static_cast<float*>(args.out.data) + token * args.out.row_stride;
  // Angles reach thousands: the fast sine would lose their digits.
  sincosf(static_cast<float>(position) * args.frequencies[j], out + pairs + j, out + j);
}

struct Head {
  int model_dim;
  int pairs;
  const float* cosines;  // of the token, then as many sines
};

/// One warp, one head in place.
template <class T>
__device__ void rotate_head(T* x, const Head& head, const NormWeight& norm) {
  const int lane = threadIdx.x % 32;
  float scale = 1;
  if (norm.gamma != nullptr) {
    float squares = 0;
    for (int c = lane; c < head.model_dim; c += 32) {
      const float value = to_float(x[c]);
      squares += value * value;
    }
    scale = rsqrtf(warp_sum(squares) / static_cast<float>(head.model_dim) + norm.eps);
  }
  const auto normed = [&](int c) {
    const float value = to_float(x[c]) * scale;
    return norm.gamma != nullptr ? value * norm.gamma[c] : value;
  };
  for (int j = lane; j < head.pairs; j += 32) {
    const float cosine = head.cosines[j], sine = head.cosines[head.pairs + j];
    const float a = normed(j), b = normed(head.pairs + j);
    x[j] = Element<T>::from(a * cosine - b * sine);
    x[head.pairs + j] = Element<T>::from(b * cosine + a * sine);
  }
  if (norm.gamma == nullptr) return;
  for (int c = 2 * head.pairs + lane; c < head.model_dim; c += 32)
    x[c] = Element<T>::from(normed(c));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_heads_kernel(const __grid_constant__ RotateHeadsArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int heads = args.num_heads + args.num_kv_heads;
  const int64_t index = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int64_t row = index / heads;
  const int h = static_cast<int>(index % heads);
  if (row >= (args.row_count == nullptr ? args.q.shape[0] : *args.row_count)) return;
  Head head{args.model_dim, static_cast<int>(args.rotation.shape[1] / 2), nullptr};
  if (args.rotation.data != nullptr) {
    head.cosines = static_cast<const float*>(args.rotation.data) + row * args.rotation.row_stride;
  } else {
    head.pairs = 0;
  }
  const bool is_query = h < args.num_heads;
  const TensorView& rows = is_query ? args.q : args.k;
  const int offset = (is_query ? h : h - args.num_heads) * args.head_dim;
  rotate_head(static_cast<T*>(rows.data) + row * rows.row_stride + offset, head,
              is_query ? args.q_norm : args.k_norm);
}

unsigned blocks_for(int64_t count, int per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

void launch_rotation(const RotationArgs& args, cudaStream_t stream) {
  const int pairs = static_cast<int>(args.out.columns() / 2);
  if (args.out.rows() == 0 || pairs == 0) return;
  launch_kernel(rotation_kernel, blocks_for(args.out.rows() * pairs, kThreads), kThreads, 0, stream,
                args, pairs);
}

void launch_rotate_heads(const RotateHeadsArgs& args, cudaStream_t stream) {
  const int64_t heads = int64_t{args.q.rows()} * (args.num_heads + args.num_kv_heads);
  if (heads == 0) return;
  dispatch_dtype(args.q.dtype, [&]<class T>() {
    launch_kernel(rotate_heads_kernel<T>, blocks_for(heads, kThreads / 32), kThreads, 0, stream,
                  args);
  });
}

}  // namespace packhorse::cuda
