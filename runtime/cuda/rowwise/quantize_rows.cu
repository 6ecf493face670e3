#include "core/format.h"
#include "cuda/rowwise/quantize_rows.h"
#include "cuda/rowwise/quantize_rows_kernel.cuh"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

template <class T, int kThreads, int kVectors>
void launch(const QuantizeRowsParams& params, const KernelStream& stream) {
  constexpr int kGroups = kQuantizeThreads<kThreads> / kThreads;
  const int64_t blocks = (params.rows + kGroups - 1) / kGroups;
  launch_kernel(quantize_rows_kernel<T, kThreads, kVectors>, dim3(static_cast<unsigned>(blocks)),
                kQuantizeThreads<kThreads>, 0, stream, params);
}

}  // namespace

void launch_quantize_rows(const QuantizeRowsParams& params, const KernelStream& stream) {
  if (params.rows == 0) return;
  if (params.columns > kMostInt8Columns) {
    throw RuntimeError(concat("rows of ", params.columns, " columns in int8, expected at most ",
                              kMostInt8Columns));
  }
  // The padding is written, too.
  const int64_t vectors = padded_int8(params.columns) / kVectorSize;
  dispatch_dtype(params.dtype, [&]<class T>() {
    if (vectors <= 32) return launch<T, 32, 1>(params, stream);
    if (vectors <= 32 * 4) return launch<T, 32, 4>(params, stream);
    if (vectors <= 256 * 4) return launch<T, 256, 4>(params, stream);
    launch<T, 1024, 8>(params, stream);
  });
}

}  // namespace packhorse::cuda
