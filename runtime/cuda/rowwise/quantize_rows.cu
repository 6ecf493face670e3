#include "core/format.h"
#include "cuda/rowwise/quantize_rows_kernel.cuh"
#include "cuda/rowwise/rowwise.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

template <class T, int kThreads, int kVectors>
void launch(const TensorView& x, const RowBytes& out, const int32_t* row_count,
            const KernelStream& stream) {
  constexpr int kGroups = kQuantizeThreads<kThreads> / kThreads;
  launch_kernel(quantize_rows_kernel<T, kThreads, kVectors>, block_count(x.rows(), kGroups),
                kQuantizeThreads<kThreads>, 0, stream, x, out, row_count);
}

}  // namespace

void launch_quantize_rows(const TensorView& x, const RowBytes& out, const int32_t* row_count,
                          const KernelStream& stream) {
  if (x.rows() == 0) return;
  if (x.columns() > kMostInt8Columns) {
    throw RuntimeError(
        concat("rows of ", x.columns(), " columns in int8, expected at most ", kMostInt8Columns));
  }
  // The padding is written, too.
  const int64_t vectors = padded_int8(x.columns()) / kVectorSize;
  dispatch_dtype(x.dtype, [&]<class T>() {
    if (vectors <= 32) return launch<T, 32, 1>(x, out, row_count, stream);
    if (vectors <= 32 * 4) return launch<T, 32, 4>(x, out, row_count, stream);
    if (vectors <= 256 * 4) return launch<T, 256, 4>(x, out, row_count, stream);
    launch<T, 1024, 8>(x, out, row_count, stream);
  });
}

}  // namespace packhorse::cuda
