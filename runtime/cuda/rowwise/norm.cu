// The kernels of LayerNorm and RMSNorm. In norm_kernel a group of threads, a warp or a whole block,
// has one or two rows: it loads them at once, keeps them in registers, computes their statistics by
// shuffles (row.cuh), and writes the results. Rows too wide for registers go to norm_folded_kernel,
// in which a block goes over its row several times.
#include "cuda/launch.cuh"
#include "cuda/rowwise/norm.h"
#include "cuda/rowwise/row.cuh"

namespace packhorse::cuda {
namespace {

// Rows that a group of a large batch works on at once. Two rows mean twice as many loads in flight
// and half the reads of gamma and beta. A block of 512 threads that reads two tensors has too few
// registers for it.
template <int kThreads, int kVectors, bool kResidual>
constexpr int kGroupRows = kThreads == 512 && (kResidual || kVectors > 4) ? 1 : 2;

// Blocks that an SM must have room for; the registers of a thread are limited accordingly.
template <int kThreads, int kVectors>
constexpr int kLeastBlocks = kThreads == 512 && kVectors <= 4 ? 2 : 1;

// Up to this many elements it pays to read gamma and beta ahead of the rows, in spite of the
// registers that this takes.
constexpr int64_t kAheadElements = 12 << 20;

__device__ int64_t row_count(const NormParams& params) {
  return params.row_count == nullptr ? params.rows : *params.row_count;
}
template <class T>
__device__ const T* x_row(const NormParams& params, int64_t row) {
  return static_cast<const T*>(params.x) + row * params.x_stride;
}
template <class T>
__device__ const T* residual_row(const NormParams& params, int64_t row) {
  return static_cast<const T*>(params.residual) + row * params.residual_stride;
}
/// Adds the columns of `params.added` from `column` on, if there is one.
template <class T>
__device__ void add_added(const NormParams& params, int64_t row, int column,
                          float (&value)[kVectorSize]) {
  if (params.added == nullptr) return;
  add_vector(value, static_cast<const T*>(params.added) + row * params.added_stride + column);
}
template <class T>
__device__ T* out_row(const NormParams& params, int64_t row) {
  return static_cast<T*>(params.out) + row * params.out_stride;
}

// A row is read from memory once, normalised in registers, and written once. With kAhead, gamma and
// beta are loaded to registers before the previous kernel ends, and the next kernel may start early
// (cuda/launch.cuh, rule 2).
template <class T, int kThreads, int kVectors, bool kResidual, int kRows, bool kAhead>
__global__ void __launch_bounds__(kBlockThreads<kThreads>,
                                  kAhead ? 1 : kLeastBlocks<kThreads, kVectors>)
    norm_kernel(const __grid_constant__ NormParams params) {
  using RowType = Row<T, kThreads, kVectors, kResidual ? 2 : 1>;
  using Weight = std::conditional_t<kAhead, WeightInRegisters<RowType, kVectors>, WeightInMemory>;
  __shared__ float scratch[kRows * 64];
  const int columns = static_cast<int>(params.columns);
  const Weight weight(params.weight, columns);
  const int64_t count = row_count(params);
  if (kAhead) let_next_kernel_start();
  wait_for_previous_kernel();
  if (!kAhead) let_next_kernel_start();
  const int64_t first =
      (int64_t{blockIdx.x} * kBlockGroups<kThreads> + threadIdx.x / kThreads) * kRows;
  if (first >= count) return;
  RowType rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool exists = first + r < count;
    rows[r].load(0, exists ? x_row<T>(params, first + r) : nullptr, columns);
    if constexpr (kResidual) {
      rows[r].load(1, exists ? residual_row<T>(params, first + r) : nullptr, columns);
    }
  }
  normalize_rows<kThreads, kVectors>(rows, params.weight, weight, columns, scratch,
                                     [&](int r, int column, float (&value)[kVectorSize]) {
                                       if (first + r >= count) return;
                                       add_added<T>(params, first + r, column, value);
                                       store_vector(out_row<T>(params, first + r) + column, value);
                                     });
}

// A block has one row, which it reads up to three times (fold_row).
template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    norm_folded_kernel(const __grid_constant__ NormParams params) {
  __shared__ float scratch[64];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= row_count(params)) return;
  fold_row(
      static_cast<int>(params.columns),
      [&](float (&value)[kVectorSize], int column) {
        add_vector(value, x_row<T>(params, row) + column);
        if (params.residual != nullptr) add_vector(value, residual_row<T>(params, row) + column);
      },
      params.weight,
      [&](float (&value)[kVectorSize], int column) {
        add_added<T>(params, row, column, value);
        store_vector(out_row<T>(params, row) + column, value);
      },
      scratch);
}

}  // namespace

void launch_norm(const NormParams& params, cudaStream_t stream) {
  if (params.rows == 0) return;
  dispatch_dtype(params.dtype, [&]<class T>() {
    dispatch_row(params.columns, [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0) {
        launch_kernel(norm_folded_kernel<T>, dim3(static_cast<unsigned>(params.rows)), kFoldThreads,
                      0, stream, params);
      } else {
        const auto launch = [&]<bool kResidual, int kRows, bool kAhead>() {
          constexpr int kBlockRows = kBlockGroups<kThreads> * kRows;
          launch_kernel(norm_kernel<T, kThreads, kVectors, kResidual, kRows, kAhead>,
                        dim3(static_cast<unsigned>((params.rows + kBlockRows - 1) / kBlockRows)),
                        kBlockThreads<kThreads>, 0, stream, params);
        };
        const auto launch_size = [&]<bool kResidual>() {
          [[maybe_unused]] const int64_t elements = params.rows * params.columns;
          if constexpr (kVectors <= 4) {
            if (elements <= kSkinnyElements)
              return launch.template operator()<kResidual, 1, true>();
          }
          if constexpr (kThreads == 32) {
            if (elements <= kAheadElements) return launch.template operator()<kResidual, 2, true>();
          }
          launch.template operator()<kResidual, kGroupRows<kThreads, kVectors, kResidual>, false>();
        };
        if (params.residual != nullptr) {
          launch_size.template operator()<true>();
        } else {
          launch_size.template operator()<false>();
        }
      }
    });
  });
}

}  // namespace packhorse::cuda
