#include "cuda/kernel_choice.h"

#include <cstdlib>
#include <string>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

GemmKernels choose_gemm_kernels(const DeviceCaps& caps) {
  const char* value = std::getenv("PACKHORSE_GEMM");
  const std::string choice = value == nullptr ? "" : value;
  if (choice.empty()) return caps.wgmma ? GemmKernels::kSm90 : GemmKernels::kPortable;
  if (choice == "portable") return GemmKernels::kPortable;
  if (choice == "sm90" && caps.wgmma) return GemmKernels::kSm90;
  throw RuntimeError(concat("PACKHORSE_GEMM is '", choice, "', expected 'portable'",
                            caps.wgmma ? " or 'sm90'" : " (this device or build has no 'sm90')"));
}

AttentionAlgorithm asked_attention_algorithm(AttentionAlgorithm asked) {
  const char* value = std::getenv("PACKHORSE_ATTENTION");
  if (asked != AttentionAlgorithm::kAuto || value == nullptr || *value == 0) return asked;
  return parse_attention_algorithm(value, "PACKHORSE_ATTENTION");
}

}  // namespace packhorse::cuda
