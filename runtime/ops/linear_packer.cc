#include "ops/linear_packer.h"

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

LinearFormat LinearPacker::grouped_format(const WeightGroups& groups, DType) const {
  throw RuntimeError(concat("this device has no dense layers of weights that stay quantised (",
                            groups.bits, " bits in groups of ", groups.size,
                            "); load the model with a dtype of floats"));
}

void LinearPacker::pack_groups(const GroupedWeight&, int64_t, int64_t, const LinearFormat& format,
                               void*) {
  grouped_format(format.groups, format.compute);
}

void LinearPacker::pack_quantized(const int8_t*, const float*, int64_t, int64_t,
                                  const LinearFormat& format, void*) {
  throw RuntimeError(
      concat("this device has no dense layers of ", name_of(format.weight), " weights"));
}

void LinearPacker::pack_on_device(const TensorView&, const LinearFormat&, void*) {
  throw RuntimeError("this device packs weights from host memory alone");
}

}  // namespace packhorse
