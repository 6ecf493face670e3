// The operators of attention and of its cache.
#include <utility>

#include "core/format.h"
#include "cuda/attention/choice.h"
#include "cuda/attention/disentangled/disentangled.h"
#include "cuda/attention/paged/paged.h"
#include "cuda/attention/portable/sm80.h"
#include "cuda/attention/short/warps.h"
#include "cuda/attention/weights/weights.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/caps.h"
#include "cuda/rowwise/rowwise.h"
#include "packhorse/error.h"

namespace packhorse::cuda {
namespace {

// Pages of keys or of values. Their rows need not be whole 16-byte accesses where they are kFloat8:
// those of a head are one array.
void check_pages(const char* op, const char* name, const TensorView& pages) {
  const int64_t rows = pages.rows() / kPageTokens;
  check_vectors(op, name, {pages.data, pages.dtype, rows, kPageTokens * pages.columns()});
}

void check_attention(const AttentionArgs& args) {
  const char* op = "attention";
  check_compute(op, args.q.dtype);
  for (auto [name, view] : {std::pair{"q", &args.q},
                            {"k", &args.k},
                            {"v", &args.v},
                            {"out", &args.out},
                            {"position_keys", &args.term.position_keys},
                            {"position_queries", &args.term.position_queries}}) {
    check_vectors(op, name, *view);
  }
  check_int32(op, args.queries);
  check_int32(op, args.keys);
}

void check_append_kv_cache(const AppendKvCacheArgs& args) {
  const char* op = "append_kv_cache";
  check_compute(op, args.k.dtype);
  check_vectors(op, "k", args.k);
  check_vectors(op, "v", args.v);
  check_pages(op, "keys", args.pages.keys);
  check_pages(op, "values", args.pages.values);
  if (args.pages.keys.dtype != args.k.dtype && args.pages.keys.dtype != DType::kFloat8) {
    throw InvalidArgument(concat("append_kv_cache: pages are ", name_of(args.pages.keys.dtype),
                                 ", keys are ", name_of(args.k.dtype)));
  }
}

void check_paged_attention(const AttentionArgs& args) {
  const char* op = "attention";
  check_compute(op, args.q.dtype);
  check_vectors(op, "q", args.q);
  check_vectors(op, "out", args.out);
  check_pages(op, "pages.keys", args.pages.keys);
  check_pages(op, "pages.values", args.pages.values);
  if (args.head_dim > 256) {
    throw InvalidArgument(concat("attention: head_dim ", args.head_dim, " is over 256"));
  }
  const bool float8 = args.pages.keys.dtype == DType::kFloat8;
  if (args.pages.keys.dtype != args.q.dtype && !float8) {
    throw InvalidArgument(concat("attention: pages are ", name_of(args.pages.keys.dtype),
                                 ", queries are ", name_of(args.q.dtype)));
  }
  if (args.k) check_append_kv_cache(appended(args));
  to_int32(op, "pages.table_stride", args.pages.table_stride);
  to_int32(op, "pages.max_kv_len", args.pages.max_kv_len);
  check_int32(op, args.queries);
}

// Terms with very many buckets or very large distances are left to the portable kernels.
bool fits_hopper(const AttentionArgs& args) {
  if constexpr (kBuiltForSm90) return attention_sm90_supported(args);
  return false;
}

}  // namespace

size_t CudaOps::attention_workspace(const AttentionArgs& args) const {
  return attention_sm80_workspace(args, portable_limits(attention_));
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
  AttentionArgs args;
  args.q.dtype = DType::kFloat16;
  args.head_dim = static_cast<int32_t>(head_dim);
  args.term = term;
  return choose_algorithm(attention_, stream_.caps.wgmma, fits_hopper(args), term,
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
  check_attention(args);
  const AttentionAlgorithm algorithm =
      choose_algorithm(attention_, stream_.caps.wgmma, fits_hopper(args), args.term, args.head_dim);
  if (explanations_ != nullptr) {
    explanations_->push_back(explain_attention(algorithm, args));
  }
  const DeviceGuard guard(device_);
  if constexpr (kBuiltForSm90) {
    if (algorithm == AttentionAlgorithm::kHopper) {
      if (disentangled) return launch_attention_disentangled_sm90(args, stream_);
      return launch_attention_sm90(args, static_cast<int32_t*>(counters_.data()), stream_);
    }
  }
  if (disentangled) return launch_attention_disentangled(args, stream_);
  launch_attention_sm80(args, stream_, portable_limits(algorithm));
}

void CudaOps::do_append_kv_cache(const AppendKvCacheArgs& args) {
  check_append_kv_cache(args);
  const DeviceGuard guard(device_);
  launch_append_kv_cache(args, stream_);
}

void CudaOps::do_paged_attention(const AttentionArgs& args) {
  check_paged_attention(args);
  const PagedLaunch how = {
      .counters = static_cast<unsigned*>(page_counters_.data()),
      .workspace_bytes = args.workspace == nullptr ? 0 : paged_attention_workspace(args)};
  AttentionArgs own = args;
  if (own.term.kind != ScoreTermKind::kAlibi) own.term.slopes = nullptr;
  if (own.term.kind != ScoreTermKind::kBucketed) own.term.by_distance = nullptr;
  const DeviceGuard guard(device_);
  if (args.k && !appends_to_pages(args, stream_.caps)) {
    launch_append_kv_cache(appended(args), stream_);
    own.k = own.v = {};
  }
  launch_attention_pages(own, how, stream_);
}

void CudaOps::do_attention_weights(const AttentionWeightsArgs& args) {
  const char* op = "attention_weights";
  check_compute(op, args.q.dtype);
  check_vectors(op, "q", args.q);
  check_pages(op, "pages.keys", args.pages.keys);
  const DType dtype = args.pages.keys.dtype;
  if (dtype != args.q.dtype && dtype != DType::kFloat8) {
    throw InvalidArgument(concat("attention_weights: pages are ", name_of(dtype), ", queries are ",
                                 name_of(args.q.dtype)));
  }
  to_int32(op, "rows of q", args.q.rows());
  to_int32(op, "num_keys", args.num_keys);
  const DeviceGuard guard(device_);
  launch_attention_weights(args, stream_);
}

std::string CudaOps::explain_attention(AttentionAlgorithm algorithm,
                                       const AttentionArgs& args) const {
  const bool narrow = is_narrow_window(attention_head_tile(args.head_dim), args.mask.window_left,
                                       args.mask.causal ? 0 : args.mask.window_right);
  const AttentionConfig config =
      select_attention(args.head_dim, args.num_heads, args.queries.num_tokens, args.keys.max_seqlen,
                       args.term.kind != ScoreTermKind::kNone, stream_.caps.sm_count, narrow);
  return concat("attention: ", args.num_heads, " heads of ", args.head_dim, ", up to ",
                args.queries.num_tokens, " tokens, up to ", args.keys.max_seqlen,
                " in a sequence: ",
                explain_algorithm(algorithm, args.term.kind == ScoreTermKind::kDisentangled, config,
                                  args.keys.max_seqlen, hopper_kernels(args)),
                args.out.dtype == DType::kFloat8 ? ", into float8" : "");
}

}  // namespace packhorse::cuda
