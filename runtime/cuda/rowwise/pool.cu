// Kernels that pool the rows of each sequence to one vector. In pool_kernel a block has 64 columns
// of one sequence. Its threads form 16 rows of 8: each combines every 16th row of the sequence in
// eight columns, by a sum or a maximum, with kInFlight rows on their way to shared memory by
// cp.async; the 16 partial results are then combined in shared memory. unit_length_kernel divides
// the results by their Euclidean norms.
#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/raise.cuh"
#include "cuda/common/reduce.cuh"
#include "cuda/common/token_position.cuh"
#include "cuda/common/vector.cuh"
#include "cuda/rowwise/async_copy.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

// A block has 64 columns, 128 bytes of each row, with 8 threads across and 16 down. Blocks are
// small to balance sequences of uneven lengths.
constexpr int kAcross = 8;
constexpr int kDown = 16;
constexpr int kThreads = kAcross * kDown;
constexpr int kBlockColumns = kAcross * kVectorSize;
constexpr int kInFlight = 8;  // rows of a thread that are on their way

template <bool kMax>
__device__ float combine(float a, float b) {
  return kMax ? max_nan(a, b) : a + b;
}

/// Returns the divisor of a sum over `length` rows.
__device__ float divisor_of(Pooling pooling, int length) {
  const auto count = static_cast<float>(length);
  switch (pooling) {
    case Pooling::kMean:
    case Pooling::kPatchMean:
      return count;
    case Pooling::kWeightedMean:
      return 0.5f * count * static_cast<float>(length + 1);
    case Pooling::kMeanSqrt:
      return sqrtf(count);
    default:
      return 1;
  }
}

template <class T, class Out, bool kMax>
__global__ void __launch_bounds__(kThreads) pool_kernel(const __grid_constant__ PoolArgs args) {
  // Rows in flight. Each thread reads only those that it copied, so there is no barrier before the
  // sums.
  __shared__ uint4 incoming[kInFlight][kThreads];
  wait_for_previous_kernel();
  let_next_kernel_start();
  // Blocks of one sequence follow each other, since they read neighbouring parts of its rows.
  const unsigned parts = ceil_div(args.x.shape[1], kBlockColumns);
  const int sequence = static_cast<int>(blockIdx.x / parts);
  const int part = static_cast<int>(blockIdx.x % parts);
  if (sequence >= TokenCounts(args.batch).sequences) return;
  int begin = args.batch.cu_seqlens[sequence];
  int end = args.batch.cu_seqlens[sequence + 1];
  int length = end - begin;
  if (args.pooling == Pooling::kCls) end = min(end, begin + 1);
  if (args.pooling == Pooling::kSecond) {
    begin = min(end, begin + 1);
    end = min(end, begin + 1);
    length = end - begin;
  }
  if (args.pooling == Pooling::kPatchMean) {
    begin = min(end, begin + static_cast<int>(args.prefix));
    length = end - begin;
  }
  if (args.pooling == Pooling::kLast) {
    if (args.skipped_id >= 0) {
      while (end - begin > 1 && args.ids[end - 1] == args.skipped_id) --end;
    }
    begin = max(begin, end - 1);
  }
  const bool weighted = args.pooling == Pooling::kWeightedMean;

  const int across = threadIdx.x % kAcross;
  const int down = threadIdx.x / kAcross;
  const int column = part * kBlockColumns + across * kVectorSize;
  const T* x = static_cast<const T*>(args.x.data) + (begin + down) * args.x.row_stride + column;
  // Number of rows from this thread's first to the sequence's last. The thread takes every kDown-th
  // of them.
  const int rows = column < args.x.shape[1] ? end - begin - down : 0;
  const auto request = [&](int row, int slot) {
    if (row < rows) copy_async(&incoming[slot][threadIdx.x], x + row * args.x.row_stride);
    end_copies();
  };
  float value[kVectorSize];
#pragma unroll
  for (float& sum : value) sum = kMax ? -INFINITY : 0.0f;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) request(i * kDown, i);
  for (int first = 0; first < rows; first += kInFlight * kDown) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int row = first + i * kDown;
      if (row >= rows) break;
      wait_for_copies<kInFlight - 1>();
      float more[kVectorSize];
      unpack<T>(more, incoming[i][threadIdx.x]);
      request(row + kInFlight * kDown, i);
      const float weight = weighted ? static_cast<float>(down + row + 1) : 1.0f;
#pragma unroll
      for (int v = 0; v < kVectorSize; ++v) value[v] = combine<kMax>(value[v], weight * more[v]);
    }
  }

  // All of this thread's rows have been read from its slots, which now take its sums.
  auto* sums = reinterpret_cast<float4(*)[kThreads]>(incoming);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* from = value + 4 * half;
    sums[half][threadIdx.x] = make_float4(from[0], from[1], from[2], from[3]);
  }
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x);
  const int out_column = part * kBlockColumns + own;
  if (own >= kBlockColumns || out_column >= args.x.shape[1]) return;
  const auto sum_of = [&](int row) {
    const float4& four = sums[own % kVectorSize / 4][row * kAcross + own / kVectorSize];
    return reinterpret_cast<const float*>(&four)[own % 4];
  };
  float total = sum_of(0);
#pragma unroll
  for (int row = 1; row < kDown; ++row) total = combine<kMax>(total, sum_of(row));
  total = length <= 0 ? 0.0f : total / divisor_of(args.pooling, length);
  Out* out = static_cast<Out*>(args.out.data) + sequence * args.out.row_stride;
  out[out_column] = Element<Out>::from(total);
}

// Scales rows to unit length, in place. A block has one pooled row. Each thread keeps its first
// kVectors vectors in registers and reads the rest a second time.
template <class Out, int kRowThreads, int kVectors>
__global__ void __launch_bounds__(kRowThreads)
    unit_length_kernel(const __grid_constant__ PoolArgs args) {
  __shared__ float scratch[32];
  const int sequence = static_cast<int>(blockIdx.x);
  Out* row = static_cast<Out*>(args.out.data) + sequence * args.out.row_stride;
  const int columns = static_cast<int>(args.out.shape[1]);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (sequence >= TokenCounts(args.batch).sequences) return;
  const auto column = [](int vector) {
    return (static_cast<int>(threadIdx.x) + vector * kRowThreads) * kVectorSize;
  };
  float squares[1] = {};
  const auto add = [&](const float (&value)[kVectorSize]) {
    for (float x : value) squares[0] += x * x;
  };
  float kept[kVectors][kVectorSize] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) < columns) load_vector(kept[v], row + column(v));
  }
#pragma unroll
  for (const auto& value : kept) add(value);
  float value[kVectorSize];
  for (int v = kVectors; column(v) < columns; ++v) {
    load_vector(value, row + column(v));
    add(value);
  }
  group_sum<kRowThreads>(squares, scratch);
  const float length = sqrtf(squares[0]);
  const float divisor = length < 1e-12f ? 1e-12f : length;
  const auto store = [&](int v, float (&value)[kVectorSize]) {
    for (float& x : value) x /= divisor;
    store_vector(row + column(v), value);
  };
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) < columns) store(v, kept[v]);
  }
  for (int v = kVectors; column(v) < columns; ++v) {
    load_vector(value, row + column(v));
    store(v, value);
  }
}

template <class Out>
void launch_unit_length(const PoolArgs& args, const KernelStream& stream) {
  const auto launch = [&]<int kRowThreads, int kVectors>() {
    launch_kernel(unit_length_kernel<Out, kRowThreads, kVectors>,
                  dim3(static_cast<unsigned>(args.batch.num_sequences)), kRowThreads, 0, stream,
                  args);
  };
  if (args.out.shape[1] <= 128 * kVectorSize) return launch.template operator()<128, 1>();
  if (args.out.shape[1] <= 512 * kVectorSize) return launch.template operator()<512, 1>();
  launch.template operator()<512, 4>();
}

template <class T, class Out, bool kMax>
void launch_pool_to(const PoolArgs& args, const KernelStream& stream) {
  const auto sequences = static_cast<unsigned>(args.batch.num_sequences);
  const auto columns = static_cast<unsigned>(args.x.shape[1]);
  const unsigned blocks = sequences * ceil_div(columns, kBlockColumns);
  // Blocks that start in clusters of two are 2 to 4 % faster. An odd block gets a partner without
  // work.
  launch_clusters(2, pool_kernel<T, Out, kMax>, dim3(round_up(blocks, 2)), kThreads, 0, stream,
                  args);
  if (!args.normalize) return;
  if (takes_vectors(args.out)) return launch_unit_length<Out>(args, stream);
  launch_cast({.x = args.out, .out = args.out, .normalize = true}, stream);
}

}  // namespace

void launch_pool(const PoolArgs& args, const KernelStream& stream) {
  if (args.batch.num_sequences == 0) return;
  const auto launch = [&]<class T, class Out>() {
    if (args.pooling == Pooling::kMax) {
      launch_pool_to<T, Out, true>(args, stream);
    } else {
      launch_pool_to<T, Out, false>(args, stream);
    }
  };
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    if (args.out.dtype == DType::kFloat32) {
      launch.template operator()<T, float>();
    } else {
      launch.template operator()<T, T>();
    }
  });
}

}  // namespace packhorse::cuda
