// Kernels of LayerNorm and RMSNorm. In norm_kernel a group of threads, a warp or a whole block, has
// one or two rows: it loads them at once, keeps them in registers, computes their statistics by
// shuffles (row.cuh), and writes the results. Rows too wide for registers go to norm_folded_kernel,
// in which a block goes over its row several times.
#include "cuda/common/launch.cuh"
#include "cuda/rowwise/row.cuh"
#include "cuda/rowwise/rowwise.h"

namespace packhorse::cuda {
namespace {

// Rows that a group of a large batch normalises at once. Two rows mean twice as many loads in
// flight and half the reads of gamma and beta. A block of 512 threads has too few registers for two
// where it reads two tensors, and so has any thread with more than four vectors.
template <int kThreads, int kVectors, bool kResidual>
constexpr int kGroupRows = kVectors > 4 || (kThreads == 512 && kResidual) ? 1 : 2;

// Blocks for which the registers of an SM must suffice.
template <int kThreads, int kVectors>
constexpr int kLeastBlocks = kThreads == 512 && kVectors <= 4 ? 2 : 1;

__device__ int64_t row_count(const NormArgs& args) {
  return args.row_count == nullptr ? args.x.shape[0] : *args.row_count;
}
template <class T>
__device__ const T* x_row(const NormArgs& args, int64_t row) {
  return static_cast<const T*>(args.x.data) + row * args.x.row_stride;
}
template <class T>
__device__ const T* residual_row(const NormArgs& args, int64_t row) {
  return static_cast<const T*>(args.residual.data) + row * args.residual.row_stride;
}
/// Adds the columns of `args.added` from `column` on, if there is one.
template <class T>
__device__ void add_added(const NormArgs& args, int64_t row, int column,
                          float (&value)[kVectorSize]) {
  if (args.added.data == nullptr) return;
  add_vector(value, static_cast<const T*>(args.added.data) + row * args.added.row_stride + column);
}
template <class T>
__device__ T* out_row(const NormArgs& args, int64_t row) {
  return static_cast<T*>(args.out.data) + row * args.out.row_stride;
}

// A row is read from memory once, normalised in registers, and written once. With kAhead, gamma and
// beta are loaded to registers before the previous kernel ends, and the next kernel may start early
// (cuda/common/launch.cuh, rule 2).
template <class T, int kThreads, int kVectors, bool kResidual, int kRows, bool kAhead>
__global__ void __launch_bounds__(kBlockThreads<kThreads>,
                                  kAhead ? 1 : kLeastBlocks<kThreads, kVectors>)
    norm_kernel(const __grid_constant__ NormArgs args) {
  using RowType = Row<T, kThreads, kVectors, kResidual ? 2 : 1>;
  using Weight = std::conditional_t<kAhead, WeightInRegisters<RowType, kVectors>, WeightInMemory>;
  __shared__ float scratch[kRows * 64];
  const int columns = static_cast<int>(args.x.shape[1]);
  const Weight weight(args.norm, columns);
  const int64_t count = row_count(args);
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
    rows[r].load(0, exists ? x_row<T>(args, first + r) : nullptr, columns);
    if constexpr (kResidual) {
      rows[r].load(1, exists ? residual_row<T>(args, first + r) : nullptr, columns);
    }
  }
  normalize_rows<kThreads, kVectors>(rows, args.norm, weight, columns, scratch,
                                     [&](int r, int column, float (&value)[kVectorSize]) {
                                       if (first + r >= count) return;
                                       add_added<T>(args, first + r, column, value);
                                       store_vector(out_row<T>(args, first + r) + column, value);
                                     });
}

// A block has one row, which it reads up to three times (fold_row).
template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    norm_folded_kernel(const __grid_constant__ NormArgs args) {
  __shared__ float scratch[64];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= row_count(args)) return;
  fold_row(
      static_cast<int>(args.x.shape[1]),
      [&](float (&value)[kVectorSize], int column) {
        add_vector(value, x_row<T>(args, row) + column);
        if (args.residual.data != nullptr) add_vector(value, residual_row<T>(args, row) + column);
      },
      args.norm,
      [&](float (&value)[kVectorSize], int column) {
        add_added<T>(args, row, column, value);
        store_vector(out_row<T>(args, row) + column, value);
      },
      scratch);
}

}  // namespace

void launch_norm(const NormArgs& args, const KernelStream& stream) {
  if (args.x.rows() == 0) return;
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    dispatch_row(args.x.columns(), [&]<int kThreads, int kVectors>() {
      if constexpr (kVectors == 0) {
        launch_kernel(norm_folded_kernel<T>, dim3(static_cast<unsigned>(args.x.rows())),
                      kFoldThreads, 0, stream, args);
      } else {
        const auto launch = [&]<bool kResidual, int kRows, bool kAhead>() {
          constexpr int kBlockRows = kBlockGroups<kThreads> * kRows;
          launch_kernel(norm_kernel<T, kThreads, kVectors, kResidual, kRows, kAhead>,
                        dim3(block_count(args.x.rows(), kBlockRows)), kBlockThreads<kThreads>, 0,
                        stream, args);
        };
        const auto launch_size = [&]<bool kResidual>() {
          [[maybe_unused]] const int64_t elements = args.x.size();
          if constexpr (kVectors <= 5) {
            if (elements <= kSkinnyElements)
              return launch.template operator()<kResidual, 1, true>();
          }
          if constexpr (kThreads == 32 && kVectors <= 4) {
            if (elements <= kAheadElements) return launch.template operator()<kResidual, 2, true>();
          }
          launch.template operator()<kResidual, kGroupRows<kThreads, kVectors, kResidual>, false>();
        };
        if (args.residual.data != nullptr) {
          launch_size.template operator()<true>();
        } else {
          launch_size.template operator()<false>();
        }
      }
    });
  });
}

}  // namespace packhorse::cuda
