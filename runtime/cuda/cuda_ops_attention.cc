// The operators of attention.
#include "core/format.h"
#include "cuda/attention/choice.h"
#include "cuda/attention/disentangled/disentangled.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/attention/portable/sm80.h"
#include "cuda/attention/short/warps.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/rowwise/append_kv_cache.h"
#include "cuda/rowwise/rope.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

// Terms with very many buckets or very large distances are left to the portable kernels.
bool fits_hopper(const AttentionParams& params) {
  if constexpr (kBuiltForSm90) return attention_sm90_supported(params);
  return false;
}

}  // namespace

size_t CudaOps::attention_workspace(const AttentionArgs& args) const {
  return attention_sm80_workspace(args.queries.num_tokens, args.keys.max_seqlen, args.num_heads,
                                  args.head_dim, portable_limits(attention_));
}

size_t CudaOps::paged_attention_workspace(const AttentionArgs& args) const {
  return attention_pages_workspace(args.queries.num_tokens, args.pages.max_kv_len, args.num_heads,
                                   args.head_dim);
}

bool CudaOps::attention_writes_float8(int64_t head_dim, const ScoreTerm& term) const {
  if (term.kind == ScoreTermKind::kDisentangled || head_dim > kMostFloat8HeadDim ||
      head_dim % kFloat8Multiple != 0) {
    return false;
  }
  AttentionParams params;
  params.head_dim = static_cast<int32_t>(head_dim);
  params.term = term;
  return choose_algorithm(attention_, stream_.caps.wgmma, fits_hopper(params), term,
                          static_cast<int>(head_dim)) == AttentionAlgorithm::kHopper;
}

void CudaOps::do_rotation(const RotationArgs& args) {
  const DeviceGuard guard(device_);
  launch_rotation(args, stream_);
}

void CudaOps::do_rope(const RopeArgs& args) {
  if (args.head_dim > 256) {
    throw InvalidArgument(concat("rope: head_dim ", args.head_dim, " is over 256"));
  }
  const DeviceGuard guard(device_);
  launch_rope(args, stream_);
}

void CudaOps::do_attention(const AttentionArgs& args) {
  const bool disentangled = args.term.kind == ScoreTermKind::kDisentangled;
  const int widest = disentangled ? kDisentangledHeadDim : 256;
  if (args.head_dim > widest) {
    throw InvalidArgument(concat("attention: head_dim ", args.head_dim, " is over ", widest,
                                 disentangled ? ", the most with a disentangled term" : ""));
  }
  AttentionParams params = attention_params(args, stream_.caps.sm_count);
  const AttentionAlgorithm algorithm = choose_algorithm(
      attention_, stream_.caps.wgmma, fits_hopper(params), args.term, args.head_dim);
  if (explanations_ != nullptr) {
    explanations_->push_back(explain_attention(algorithm, params));
  }
  const DeviceGuard guard(device_);
  if constexpr (kBuiltForSm90) {
    if (algorithm == AttentionAlgorithm::kHopper) {
      if (disentangled) return launch_attention_disentangled_sm90(params, stream_);
      params.workspace = counters_.data();
      params.workspace_bytes = counters_.bytes();
      return launch_attention_sm90(params, stream_);
    }
  }
  if (disentangled) return launch_attention_disentangled(params, stream_);
  params.workspace = args.workspace;
  params.workspace_bytes = args.workspace == nullptr ? 0 : attention_workspace(args);
  launch_attention_sm80(params, stream_, portable_limits(algorithm));
}

void CudaOps::do_append_kv_cache(const AppendKvCacheArgs& args) {
  check_append_kv_cache(args);
  const DeviceGuard guard(device_);
  launch_append_kv_cache(args, stream_);
}

void CudaOps::do_paged_attention(const AttentionArgs& args) {
  PagedAttentionParams params = paged_attention_params(args, stream_.caps.sm_count);
  params.workspace = static_cast<float*>(args.workspace);
  params.workspace_bytes = args.workspace == nullptr ? 0 : paged_attention_workspace(args);
  params.counters = static_cast<unsigned*>(page_counters_.data());
  const DeviceGuard guard(device_);
  if (args.k && !appends_to_pages(params, stream_.caps))
    launch_append_kv_cache(appended(args), stream_);
  launch_attention_pages(params, stream_);
}

std::string CudaOps::explain_attention(AttentionAlgorithm algorithm,
                                       const AttentionParams& params) const {
  const bool narrow =
      is_narrow_window(attention_head_tile(params.head_dim), params.mask.window_left,
                       params.mask.causal ? 0 : params.mask.window_right);
  const AttentionConfig config =
      select_attention(params.head_dim, params.num_heads, params.num_tokens_q, params.max_seqlen_k,
                       params.term.kind != ScoreTermKind::kNone, stream_.caps.sm_count, narrow);
  return concat("attention: ", params.num_heads, " heads of ", params.head_dim, ", up to ",
                params.num_tokens_q, " tokens, up to ", params.max_seqlen_k, " in a sequence: ",
                explain_algorithm(algorithm, params.term.kind == ScoreTermKind::kDisentangled,
                                  config, params.max_seqlen_k, hopper_kernels(params)),
                params.out_factor != 0 ? ", into float8" : "");
}

}  // namespace packhorse::cuda
