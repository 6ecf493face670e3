#include "cpu/gemm/gemm_int8.h"

#include <algorithm>
#include <vector>

#include "core/format.h"
#include "core/int8.h"
#include "core/math.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kRowsOfTask = 64;

void check_in_features(int64_t in_features) {
  constexpr int64_t kMost = (int64_t{1} << 31) / (255 * 127);
  if (in_features > kMost) {
    throw InvalidArgument(
        concat("dtype int8: a layer of ", in_features, " in_features, expected at most ", kMost));
  }
}

// Packs a weight. `row(n, to)` writes q of output feature n to `to` and returns its scale.
template <class Row>
void pack(int64_t in_features, int64_t out_features, void* packed, ThreadPool& pool, Row row) {
  const Int8Weight parts(packed, packed_panels_bytes(in_features, out_features, DType::kInt8),
                         out_features);
  auto* scales = const_cast<float*>(parts.scales);
  auto* sums = const_cast<float*>(parts.sums);
  std::vector<int8_t> weight(static_cast<size_t>(in_features * out_features));
  pool.parallel_for(ceil_div(out_features, kRowsOfTask), [&](int64_t task, int) {
    const int64_t begin = task * kRowsOfTask;
    for (int64_t n = begin; n < std::min(begin + kRowsOfTask, out_features); ++n) {
      int8_t* q = weight.data() + n * in_features;
      scales[n] = row(n, q);
      int64_t sum = 0;
      for (int64_t i = 0; i < in_features; ++i) sum += q[i];
      sums[n] = scales[n] * static_cast<float>(sum);
    }
  });
  pack_panels(weight.data(), DType::kInt8, in_features, out_features, DType::kInt8, packed, pool);
}

}  // namespace

Int8Weight::Int8Weight(const void* packed, size_t panel_bytes, int64_t out_features)
    : panels(packed),
      scales(reinterpret_cast<const float*>(static_cast<const char*>(packed) +
                                            round_up(panel_bytes, 64))),
      sums(scales + out_features) {}

size_t packed_int8_bytes(int64_t in_features, int64_t out_features) {
  check_in_features(in_features);
  return round_up(packed_panels_bytes(in_features, out_features, DType::kInt8), 64) +
         2 * static_cast<size_t>(out_features) * sizeof(float);
}

void pack_int8_weight(const float* weight, int64_t in_features, int64_t out_features, void* packed,
                      ThreadPool& pool) {
  pack(in_features, out_features, packed, pool, [&](int64_t n, int8_t* to) {
    return quantize_int8(weight + n * in_features, in_features, to);
  });
}

void pack_int8_weight(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, void* packed, ThreadPool& pool) {
  pack(in_features, out_features, packed, pool, [&](int64_t n, int8_t* to) {
    std::copy_n(weight + n * in_features, in_features, to);
    return scales[n];
  });
}

}  // namespace packhorse::cpu
