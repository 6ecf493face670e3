#include "cuda/arg_checks.h"

#include <limits>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

void check_compute(const char* op, DType dtype) {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) return;
  throw InvalidArgument(concat(op, ": found ", name_of(dtype), ", CUDA runs float16 or bfloat16"));
}

void check_vectors(const char* op, const char* name, const TensorView& view) {
  if (!view || view.columns() == 0) return;
  const int64_t multiple = view.dtype == DType::kFloat8 ? kFloat8Multiple : kMultiple;
  if (view.columns() % multiple == 0 && view.row_stride % multiple == 0 &&
      reinterpret_cast<uintptr_t>(view.data) % 16 == 0) {
    return;
  }
  throw InvalidArgument(concat(op, ": ", name, " is ", view.describe(), " with rows ",
                               view.row_stride, " elements apart at address ", view.data,
                               ": CUDA needs columns and strides that are multiples of ", multiple,
                               " and an address that is one of 16"));
}

int32_t to_int32(const char* op, const char* name, int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument(concat(op, ": ", name, " is ", value, ", at most ",
                                 std::numeric_limits<int32_t>::max(), " are supported"));
  }
  return static_cast<int32_t>(value);
}

void check_int32(const char* op, const BatchView& batch) {
  to_int32(op, "num_sequences", batch.num_sequences);
  to_int32(op, "num_tokens", batch.num_tokens);
  to_int32(op, "max_seqlen", batch.max_seqlen);
}

void check_int32(const char* op, const TensorView& x, const LinearWeight& weight) {
  to_int32(op, "rows", x.rows());
  to_int32(op, "out_features", weight.out_features);
  to_int32(op, "in_features", weight.in_features);
}

}  // namespace packhorse::cuda
