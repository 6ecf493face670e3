// Table of our own vector kernels, which are compiled once for each instruction set (the .inc files
// of this folder) and chosen at run time. A family of kernels has a header with its tasks.
//
// These headers define only plain structs of pointers and sizes. Files that are compiled for
// instructions which the machine may lack include them, so they must not bring inline functions
// with them (simd.inc). Arrays indexed by dtype have float32 at 0 and bfloat16 at 1. Strides count
// elements.
#pragma once

#include <stdint.h>

#include "cpu/isa/attention_kernels.h"
#include "cpu/isa/cca_kernels.h"
#include "cpu/isa/gemm_kernels.h"
#include "cpu/isa/image_kernels.h"
#include "cpu/isa/row_kernels.h"

namespace packhorse::cpu {

/// Numbers of which block_maxima makes one.
inline constexpr int64_t kMaximaBlock = 256;

struct Kernels {
  void (*norm_rows[2][2])(const NormRows&);  // [dtype of x][dtype of residual and out]
  void (*embed_row[2])(const EmbedRow&);
  void (*pool_rows[2][2])(const PoolRows&);          // [dtype of x][dtype of out]
  void (*cast[2][2])(const CastElements&);           // [from][to]
  void (*log_softmax_row[2])(const LogSoftmaxRow&);  // [dtype of x]
  void (*gate_rows[2])(const GateRows&);
  void (*quantize_rows[2])(const QuantizeRows&);      // [dtype of x]
  void (*dequantize_rows[2])(const DequantizeRows&);  // [dtype of out]
  void (*rotate_row[2])(const RotateRow&);
  /// Sum of exp(x[i] - largest) of `count` numbers, none of which is above `largest`.
  double (*sum_of_exp)(const float* x, int64_t count, float largest);
  /// out[i] = exp((x[i] - largest) * factor) of `count` numbers, none of which is above `largest`;
  /// 0 of NaN. `out` may be `x`.
  void (*exp_of_distances)(const float* x, int64_t count, float largest, float factor, float* out);
  /// maxima[i] = the largest of x[kMaximaBlock * i] and those behind it up to the next block, or
  /// -infinity where all are NaN.
  void (*block_maxima)(const float* x, int64_t count, float* maxima);
  void (*attention[2])(const AttentionTile&);
  void (*pack_paged_queries[2])(const PagedTile&);  // [dtype of q], before attend_chunk
  void (*quantize_head[2])(const QuantizeHead&);    // [dtype of x]
  /// [of pages: float32, bfloat16, e4m3]
  void (*attend_chunk[3])(const PagedTile&, int64_t chunk, const SoftmaxState&);
  void (*clear_state)(const SoftmaxState&, int rows, int head_dim);
  void (*merge_chunks)(const SoftmaxState& into, const SoftmaxState& next, int rows, int head_dim);
  void (*write_paged_rows[2])(const PagedTile&, const SoftmaxState&);  // [dtype of out]
  void (*multiply[3])(const MultiplyRows&);  // [dtype of weight: float32, bfloat16, float16]
  void (*pack_columns[3])(const PackColumns&);
  int64_t panel_group_bytes;                                 // size of groups in MultiplyPanels
  void (*multiply_panels[2])(const MultiplyPanels&);         // [dtype of out]; null on x86-64
  void (*multiply_panels_int8)(const MultiplyPanels&);       // null with AVX-512
  void (*multiply_panels_int8_vnni)(const MultiplyPanels&);  // only with AVX2; needs VNNI
  void (*multiply_stripe[2])(const MultiplyStripe&);    // [dtype of out]; null without AVX512-BF16
  void (*multiply_stripe_int8)(const MultiplyStripe&);  // null without AVX-512; needs VNNI or AMX
  void (*multiply_stripe_int8_plain)(const MultiplyStripe&);     // without VNNI; only with AVX-512
  void (*quantize_blocks[2])(const QuantizeBlocks&);             // [dtype of x]
  void (*multiply_groupwise[2])(const MultiplyGroupwise&);       // [dtype of out]
  void (*multiply_groupwise_vnni[2])(const MultiplyGroupwise&);  // null without AVX2; needs VNNI
  /// Weights of 10 bits, with the bits of those above, of rows whose bytes are `apart`; null
  /// without AMX.
  void (*multiply_wide[2])(const MultiplyGroupwise&);
  void (*lora_shrink[2])(const LoraShrink&);
  void (*lora_expand[2])(const LoraExpand&);
  void (*activate[2])(const ActivateElements&);
  void (*convolve_head[2])(const CcaHead&);  // [dtype of latents]
  ImageKernels image;
  ImageKernels
      image_bytes;  // empty without products of signed and other bytes; need VNNI on x86-64
};

extern const Kernels kSse41Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kNeonKernels;
extern const Kernels kNeonDotKernels;
extern const Kernels kNeonMatmulKernels;

/// Replaces kernels of kAvx512Bf16Kernels by those that use AMX. Runs on a processor with AMX
/// alone.
void use_amx(Kernels& kernels);

/// The kernels for this machine (cpu_features).
const Kernels& kernels_here();

}  // namespace packhorse::cpu
