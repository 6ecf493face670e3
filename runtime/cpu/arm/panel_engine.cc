// Dense layers of aarch64 in bfloat16 and int8, all by our own kernels.
#include "cpu/gemm/gemm_engine.h"
#include "cpu/gemm/gemm_int8.h"
#include "cpu/gemm/gemm_panels.h"
#include "cpu/threads/one_thread.h"

namespace packhorse::cpu {
namespace {

class PanelEngine final : public GemmEngine {
 public:
  std::unique_ptr<Gemm> make(const DenseShape& shape) override { return make_panel_gemm(shape); }
};

}  // namespace

std::unique_ptr<GemmEngine> make_gemm_engine(int) { return std::make_unique<PanelEngine>(); }

int int8_levels() { return 255; }

size_t packed_panels_bytes(int64_t in_features, int64_t out_features, DType dtype) {
  return own_panels_bytes(in_features, out_features, dtype);
}

void pack_panels(const void* weight, DType, int64_t in_features, int64_t out_features, DType dtype,
                 void* packed, ThreadPool& pool) {
  pack_own_panels(weight, in_features, out_features, dtype, packed, pool);
}

void pack_panel_rows(const float* rows, int64_t first, int64_t count, int64_t in_features,
                     void* packed) {
  pack_own_panel_rows(rows, first, count, in_features, packed);
}

// Nothing to limit here: no library with threads of its own is in use.
void use_one_thread() {}
OneThreadScope::OneThreadScope() = default;
OneThreadScope::~OneThreadScope() = default;

}  // namespace packhorse::cpu
