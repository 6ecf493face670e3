// The host side of Hopper attention: which arguments it can compute, and which kernel computes
// them.
#include <cutlass/numeric_types.h>

#include "core/format.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/config.h"
#include "cuda/attention/short/warps.h"
#include "packhorse/error.h"

namespace packhorse::cuda {

template <class Element, int head_tile, bool float8_out>  // defined in attention/sm90/dispatch.h
bool launch_attention_plan(AttentionPlan plan, const AttentionArgs& args,
                           const AttentionLaunch& how, const KernelStream& stream);

namespace {

template <class Element>
bool launch_attention_config(const AttentionConfig& config, const AttentionArgs& args,
                             const AttentionLaunch& how, const KernelStream& stream) {
  if (args.out.dtype == DType::kFloat8) {
    switch (config.head_tile) {
#ifndef PACKHORSE_CUDA_REDUCED
      case 32:
        return launch_attention_plan<Element, 32, true>(config.plan, args, how, stream);
#endif
      case 64:
        return launch_attention_plan<Element, 64, true>(config.plan, args, how, stream);
      default:
        return false;
    }
  }
  switch (config.head_tile) {
#ifndef PACKHORSE_CUDA_REDUCED
    case 32:
      return launch_attention_plan<Element, 32, false>(config.plan, args, how, stream);
    case 96:
      return launch_attention_plan<Element, 96, false>(config.plan, args, how, stream);
    case 128:
      return launch_attention_plan<Element, 128, false>(config.plan, args, how, stream);
    case 256:
      return launch_attention_plan<Element, 256, false>(config.plan, args, how, stream);
#endif
    case 64:
      return launch_attention_plan<Element, 64, false>(config.plan, args, how, stream);
    default:
      return false;
  }
}

}  // namespace

bool attention_sm90_supported(const AttentionArgs& p) {
  const auto aligned = [](const TensorView& view) {
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.row_stride % 8 == 0;
  };
  return (p.q.dtype == DType::kFloat16 || p.q.dtype == DType::kBFloat16) && p.head_dim >= 8 &&
         p.head_dim <= 256 && p.head_dim % 8 == 0 && aligned(p.q) && aligned(p.k) && aligned(p.v) &&
         aligned(p.out) && p.term.kind != ScoreTermKind::kGrid &&
         (p.term.kind != ScoreTermKind::kBucketed ||
          (p.term.num_buckets <= 256 && p.term.max_distance <= kAttentionMaxTermDistance));
}

void launch_attention_sm90(const AttentionArgs& p, int32_t* next_tile, const KernelStream& stream) {
  if (p.queries.num_tokens == 0) return;
  if (!attention_sm90_supported(p)) {
    throw RuntimeError(concat(
        "attention on Hopper takes fp16 or bf16, a head_dim that is a "
        "multiple of 8 up to 256, 16-byte aligned rows and no term of grids or one of at most "
        "256 buckets and a distance of ",
        kAttentionMaxTermDistance, "; found ", name_of(p.q.dtype), ", head_dim ", p.head_dim, ", ",
        p.term.num_buckets, " buckets, distance ", p.term.max_distance));
  }
  const HopperKernels kernels = hopper_kernels(p);
  if (kernels.warps) launch_attention_warps(p, stream);
  if (!kernels.tiles) return;
  const AttentionLaunch how = {.next_tile = next_tile,
                               .short_tokens = attention_warps_take(p) ? kWarpTokens : 0};
  const bool narrow = is_narrow_window(attention_head_tile(p.head_dim), p.mask.window_left,
                                       p.mask.causal ? 0 : p.mask.window_right);
  const AttentionConfig config =
      select_attention(p.head_dim, p.num_heads, p.queries.num_tokens, p.keys.max_seqlen,
                       p.term.kind != ScoreTermKind::kNone, stream.caps.sm_count, narrow);
  const bool launched = p.q.dtype == DType::kFloat16
                            ? launch_attention_config<cutlass::half_t>(config, p, how, stream)
                            : launch_attention_config<cutlass::bfloat16_t>(config, p, how, stream);
  if (!launched) {
    throw RuntimeError(concat("this build has no attention kernel for ", describe(config)));
  }
}

}  // namespace packhorse::cuda
