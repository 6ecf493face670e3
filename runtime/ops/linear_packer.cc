#include "ops/linear_packer.h"

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

void LinearPacker::pack_quantized(const int8_t*, const float*, int64_t, int64_t,
                                  const LinearFormat& format, void*) {
  throw RuntimeError(
      concat("this device has no dense layers of ", name_of(format.weight), " weights"));
}

int64_t LinearPacker::features_apart(const LinearFormat&) const { return 0; }

void LinearPacker::pack_rows(const float*, int64_t, int64_t, int64_t, const LinearFormat&, void*) {
  throw RuntimeError("this device packs weights as a whole");
}

void LinearPacker::pack_group_rows(const GroupedWeight&, int64_t, int64_t, int64_t,
                                   const LinearFormat&, void*) {
  throw RuntimeError("this device packs weights as a whole");
}

void LinearPacker::pack_on_device(const TensorView&, const LinearFormat&, void*) {
  throw RuntimeError("this device packs weights from host memory alone");
}

}  // namespace packhorse
