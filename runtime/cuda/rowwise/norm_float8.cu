// The kernel of norms with results in e4m3. It is norm_kernel (norm.cu) with one more output; its
// 16-bit results have the same bits. Results stay in registers until the largest magnitude of their
// row is known, from which the group that has the row computes its scale.
#include "cuda/common/float8.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/rowwise/row.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

/// Stores eight numbers times `factor` as e4m3 at `to`, which is aligned to 8 bytes.
__device__ void store_float8(unsigned char* to, const float (&from)[kVectorSize], float factor) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] = pack_float8(from[4 * i] * factor, from[4 * i + 1] * factor) |
               uint32_t{pack_float8(from[4 * i + 2] * factor, from[4 * i + 3] * factor)} << 16;
  }
  *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
}

template <class T, int kThreads, int kVectors, int kRows, bool kAhead>
__global__ void __launch_bounds__(kBlockThreads<kThreads>)
    norm_float8_kernel(const __grid_constant__ NormArgs args) {
  using RowType = Row<T, kThreads, kVectors, 1>;
  using Weight = std::conditional_t<kAhead, WeightInRegisters<RowType, kVectors>, WeightInMemory>;
  __shared__ float scratch[kRows * 96];
  const int columns = static_cast<int>(args.x.shape[1]);
  const Weight weight(args.norm, columns);
  const int64_t count = args.row_count == nullptr ? args.x.shape[0] : *args.row_count;
  if (kAhead) let_next_kernel_start();
  wait_for_previous_kernel();
  if (!kAhead) let_next_kernel_start();
  const int64_t first =
      (int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads) * kRows;
  if (first >= count) return;  // true for whole groups only
  RowType rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const auto* from = static_cast<const T*>(args.x.data) + (first + r) * args.x.row_stride;
    rows[r].load(0, first + r < count ? from : nullptr, columns);
  }
  float kept[kRows][kVectors][kVectorSize];
  float most[kRows] = {};
  normalize_rows<kThreads, kVectors>(
      rows, args.norm, weight, columns, scratch,
      [&](int r, int column, float (&value)[kVectorSize]) {
        const int v = (column / kVectorSize - static_cast<int>(threadIdx.x) % kThreads) / kThreads;
#pragma unroll
        for (int i = 0; i < kVectorSize; ++i) {
          kept[r][v][i] = value[i];
          most[r] = fmaxf(most[r], fabsf(value[i]));
        }
        if (args.out.data == nullptr || first + r >= count) return;
        store_vector(static_cast<T*>(args.out.data) + (first + r) * args.out.row_stride + column,
                     value);
      });
  group_max<kThreads>(most, scratch + kRows * 64);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= count) continue;
    const float most_of_row = fmaxf(most[r], kFloat8Least);
    const float factor = __fdiv_rn(kFloat8Most, most_of_row);
    if (threadIdx.x % kThreads == 0)
      args.quantized.scales[first + r] = most_of_row * (1 / kFloat8Most);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = RowType::column(v);
      if (column >= columns) continue;
      auto* to = static_cast<unsigned char*>(args.quantized.values.data) +
                 (first + r) * args.quantized.values.row_stride + column;
      store_float8(to, kept[r][v], factor);
    }
  }
}

template <class T, int kThreads, int kVectors>
void launch_rows(const NormArgs& args, const KernelStream& stream) {
  const auto start = [&](auto* kernel, int rows_of_group) {
    const int64_t together = int64_t{kBlockGroups<kThreads>} * rows_of_group;
    launch_kernel(kernel, dim3(block_count(args.x.rows(), together)), kBlockThreads<kThreads>, 0,
                  stream, args);
  };
  // The number of rows decides speed alone: all kernels give the same bits.
  if (args.x.size() <= kSkinnyElements) {
    start(norm_float8_kernel<T, kThreads, kVectors, 1, true>, 1);
  } else if (kThreads > 32 || args.x.size() <= kAheadElements) {
    start(norm_float8_kernel<T, kThreads, kVectors, 2, kThreads == 32>, 2);
  } else {
    start(norm_float8_kernel<T, kThreads, kVectors, 1, false>, 1);
  }
}

}  // namespace

void launch_norm_float8(const NormArgs& args, const KernelStream& stream) {
  if (args.x.rows() == 0) return;
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    dispatch_row(args.x.columns(), [&]<int kThreads, int kVectors>() {
      if constexpr (kThreads == 512 || kVectors == 0) {
        throw InvalidArgument(concat("norm: rows of ", args.x.columns(), " columns, at most ",
                                     kNormFloat8Columns, " are quantised"));
      } else {
        launch_rows<T, kThreads, kVectors>(args, stream);
      }
    });
  });
}

}  // namespace packhorse::cuda
