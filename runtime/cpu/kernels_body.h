// All vector kernels for one instruction set. The including file defines two macros: PACKHORSE_ISA
// is the name of the namespace that keeps these kernels apart from those for other instruction
// sets, and PACKHORSE_KERNELS is the name of their table.
#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <stdint.h>

#include "core/math.h"
#include "cpu/kernels.h"

namespace packhorse::cpu::PACKHORSE_ISA {
#include "cpu/simd.h"
//
#include "cpu/activation_kernels.h"
//
#include "cpu/row_kernels.h"
//
#include "cpu/int8_kernels.h"
//
#include "cpu/head_kernels.h"
//
#include "cpu/attention_kernel.h"
//
#include "cpu/attention_amx_kernel.h"
//
#include "cpu/float8_kernels.h"
//
#include "cpu/paged_attention_kernel.h"
//
#include "cpu/gemm_kernel_float.h"
//
#include "cpu/gemm_kernel_stripe.h"
//
#include "cpu/gemm_kernel_stripe_tiles.h"
//
#include "cpu/gemm_kernel_groupwise.h"
//
#include "cpu/gemm_kernel_panels.h"
//
#include "cpu/lora_kernels.h"
//
#include "cpu/cca_kernels.h"
}  // namespace packhorse::cpu::PACKHORSE_ISA

namespace packhorse::cpu {
namespace isa = PACKHORSE_ISA;
using isa::bfloat16;

const Kernels PACKHORSE_KERNELS = {
    .norm_rows = {{isa::norm_rows<float, float>, isa::norm_rows<float, bfloat16>},
                  {isa::norm_rows<bfloat16, float>, isa::norm_rows<bfloat16, bfloat16>}},
    .embed_row = {isa::embed_row<float>, isa::embed_row<bfloat16>},
    .pool_rows = {{isa::pool_rows<float, float>, isa::pool_rows<float, bfloat16>},
                  {isa::pool_rows<bfloat16, float>, isa::pool_rows<bfloat16, bfloat16>}},
    .cast = {{isa::cast<float, float>, isa::cast<float, bfloat16>},
             {isa::cast<bfloat16, float>, isa::cast<bfloat16, bfloat16>}},
    .gate_rows = {isa::gate_rows<float>, isa::gate_rows<bfloat16>},
    .quantize_rows = {isa::quantize_rows<float>, isa::quantize_rows<bfloat16>},
    .dequantize_rows = {isa::dequantize_rows<float>, isa::dequantize_rows<bfloat16>},
    .rotate_row = {isa::rotate_row<float>, isa::rotate_row<bfloat16>},
    .attention = {isa::attention_in_float32, isa::attention_in_bfloat16},
    .pack_paged_queries = {isa::pack_paged_queries<float>, isa::pack_paged_queries<bfloat16>},
    .quantize_head = {isa::quantize_head<float>, isa::quantize_head<bfloat16>},
    .attend_chunk = {isa::attend_chunk<float>, isa::attend_chunk<bfloat16>,
                     isa::attend_chunk<isa::Float8>},
    .clear_state = isa::clear_state,
    .merge_chunks = isa::merge_chunks,
    .write_paged_rows = {isa::write_paged_rows<float>, isa::write_paged_rows<bfloat16>},
    .multiply = isa::multiply,
    .pack_columns = isa::pack_columns,
    .panel_group_bytes = isa::kPanelGroupBytes,
    .multiply_panels = {isa::kMultiplyPanels<float>, isa::kMultiplyPanels<bfloat16>},
    .multiply_panels_int8 = isa::kMultiplyPanelsInt8,
    .multiply_stripe = {isa::kMultiplyStripe<float>, isa::kMultiplyStripe<bfloat16>},
    .multiply_stripe_int8 = isa::kMultiplyStripeInt8,
    .quantize_blocks = {isa::quantize_blocks<float>, isa::quantize_blocks<bfloat16>},
    .multiply_groupwise = {isa::plain_groupwise::multiply<float>,
                           isa::plain_groupwise::multiply<bfloat16>},
    .multiply_groupwise_vnni = {isa::kMultiplyGroupwiseVnni<float>,
                                isa::kMultiplyGroupwiseVnni<bfloat16>},
    .lora_shrink = {isa::lora_shrink<float>, isa::lora_shrink<bfloat16>},
    .lora_expand = {isa::lora_expand<float>, isa::lora_expand<bfloat16>},
    .activate = {isa::activate_elements<float>, isa::activate_elements<bfloat16>},
    .convolve_head = {isa::convolve_head<float>, isa::convolve_head<bfloat16>},
};

}  // namespace packhorse::cpu
