// Kernels by the tile registers of AMX, and dense layers whose weights are prefetched for the
// memory of processors that have them. All other kernels on such a processor are those of
// AVX512-BF16.
#define PACKHORSE_ISA amx

#include "cpu/isa/attention_amx_kernel.inc"
#include "cpu/isa/gemm_kernel_float.inc"
#include "cpu/isa/gemm_kernel_stripe_tiles.inc"
#include "cpu/isa/gemm_kernel_wide_amx.inc"
#include "cpu/isa/kernels.h"
#include "cpu/isa/paged_attention_kernel.inc"

namespace packhorse::cpu {
namespace isa = PACKHORSE_ISA;
using isa::bfloat16;

void use_amx(Kernels& kernels) {
  kernels.attention[0] = isa::attention_in_float32;
  kernels.attention[1] = isa::attention_in_bfloat16;
  kernels.pack_paged_queries[0] = isa::pack_paged_queries<float>;
  kernels.pack_paged_queries[1] = isa::pack_paged_queries<bfloat16>;
  kernels.attend_chunk[0] = isa::attend_chunk<float>;
  kernels.attend_chunk[1] = isa::attend_chunk<bfloat16>;
  kernels.attend_chunk[2] = isa::attend_chunk<isa::Float8>;
  kernels.clear_state = isa::clear_state;
  kernels.merge_chunks = isa::merge_chunks;
  kernels.write_paged_rows[0] = isa::write_paged_rows<float>;
  kernels.write_paged_rows[1] = isa::write_paged_rows<bfloat16>;
  kernels.multiply[0] = isa::multiply<float>;
  kernels.multiply[1] = isa::multiply<bfloat16>;
  kernels.multiply[2] = isa::multiply<isa::float16>;
  kernels.multiply_stripe[0] = isa::kMultiplyStripe<float>;
  kernels.multiply_stripe[1] = isa::kMultiplyStripe<bfloat16>;
  kernels.multiply_stripe_int8 = isa::kMultiplyStripeInt8;
  kernels.multiply_wide[0] = isa::multiply_wide<float>;
  kernels.multiply_wide[1] = isa::multiply_wide<bfloat16>;
}

}  // namespace packhorse::cpu
