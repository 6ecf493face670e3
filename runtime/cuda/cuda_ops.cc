// The operators of the CUDA backend. Each checks what CUDA needs beyond what Ops has checked, and
// launches its kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/format.h"
#include "cuda/attention/attention.h"
#include "cuda/attention/attention_choice.h"
#include "cuda/attention/attention_disentangled.h"
#include "cuda/attention/attention_pages.h"
#include "cuda/attention/attention_sm80.h"
#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_context.h"
#include "cuda/cuda_packer.h"
#include "cuda/device.h"
#include "cuda/device_io.h"
#include "cuda/device_memory.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_few.h"
#include "cuda/params.h"
#include "cuda/rows/append_kv.h"
#include "cuda/rows/cast.h"
#include "cuda/rows/embedding.h"
#include "cuda/rows/gate.h"
#include "cuda/rows/lora.h"
#include "cuda/rows/neighbours.h"
#include "cuda/rows/norm.h"
#include "cuda/rows/pool.h"
#include "cuda/rows/rotate.h"
#include "cuda/rows/sparse_pool.h"
#include "cuda/sampling/begin_step.h"
#include "cuda/sampling/sampling.h"
#include "packhorse/error.h"

namespace packhorse {
namespace cuda {
namespace {

class CudaOps final : public Ops {
 public:
  /// `context` must outlive the object.
  CudaOps(CudaContext& context, bool sm90_capable, AttentionAlgorithm attention)
      : device_(context.index()),
        stream_(context.stream()),
        sm90_capable_(sm90_capable),
        gemm_kernels_(choose_gemm_kernels(sm90_capable)),
        attention_(asked_attention_algorithm(attention)),
        sm_count_(sm_count(device_)),
        counters_(device_, 256),
        page_counters_(device_, kPagedCounters * sizeof(unsigned)),
        sample_merges_(device_, kMostMerges * sizeof(SampleMerge)) {
    // An algorithm that could compute no layer is refused now, and not in the first run.
    choose_algorithm(attention_, sm90_capable, true, {}, kMultiple);
    prepare_attention_sm80();
    prepare_attention_pages();
    for (const CudaMemory* counters : {&counters_, &page_counters_, &sample_merges_}) {
      CUDA_CHECK(cudaMemsetAsync(counters->data(), 0, counters->bytes(), stream_));
    }
  }
  // The stream must be done with the counters before they are freed.
  ~CudaOps() override { cudaStreamSynchronize(stream_); }

  std::vector<std::string> explain(const std::function<void()>& work) override {
    std::vector<std::string> lines;
    explanations_ = &lines;
    try {
      work();
    } catch (...) {
      explanations_ = nullptr;
      throw;
    }
    explanations_ = nullptr;
    return lines;
  }

  int64_t width_multiple() const override { return kMultiple; }
  int64_t head_dim_multiple() const override { return kMultiple; }
  bool interleaves_heads() const override { return true; }
  // A token's position: rotation.cuh needs nothing else.
  int64_t rotation_columns(int64_t) const override { return 1; }

  size_t linear_workspace(const LinearArgs&) const override { return 0; }

  size_t feed_forward_workspace(const FeedForwardArgs& args) const override {
    // The portable kernels write gate and up side by side, and then their product.
    const int parts = args.gated && gemm_kernels_ != GemmKernels::kSm90 ? 3 : 1;
    return static_cast<size_t>(args.x.rows() * args.down.in_features) * size_of(args.x.dtype) *
           parts;
  }

  size_t attention_workspace(const AttentionArgs& args) const override {
    return attention_sm80_workspace(args.queries.num_tokens, args.keys.max_seqlen, args.num_heads,
                                    args.head_dim, portable_limits(attention_));
  }

  size_t paged_attention_workspace(const AttentionArgs& args) const override {
    return attention_pages_workspace(args.queries.num_tokens, args.pages.max_kv_len, args.num_heads,
                                     args.head_dim);
  }

  size_t sparse_pool_workspace(const SparsePoolArgs& args) const override {
    if (pools_in_gemm(args.sum)) return 0;
    return static_cast<size_t>(std::min(args.x.rows(), kSparsePoolRows) *
                               args.weight.out_features) *
           size_of(args.x.dtype);
  }

  size_t sample_workspace(const SampleArgs& args) const override {
    return static_cast<size_t>(args.num_biases + 1) * sizeof(float);
  }

 private:
  void do_embed(const EmbedArgs& args) override {
    check_compute("embed", args.out.dtype);
    for (auto [name, view] : {std::pair{"word", &args.word},
                              {"position", &args.position},
                              {"type", &args.type},
                              {"out", &args.out}}) {
      check_vectors("embed", name, *view);
    }
    const DeviceGuard guard(device_);
    launch_embed(args, sm_count_, stream_);
  }

  void do_linear(const LinearArgs& args) override {
    const DeviceGuard guard(device_);
    gemm(gemm_params("linear", args.x, args.weight, args.activation, args.residual, args.out,
                     args.row_count, sm_count_));
    if (args.norm) norm_in_place(args.out, args.norm, args.row_count);
  }

  void do_project_heads(const LinearArgs& args, const RotateHeadsArgs& heads) override {
    if (gemm_kernels_ != GemmKernels::kSm90 || heads.q_norm || heads.k_norm) {
      do_linear(args);
      return do_rotate_heads(heads);
    }
    const DeviceGuard guard(device_);
    GemmParams params = gemm_params("project_heads", args.x, args.weight, args.activation,
                                    args.residual, args.out, args.row_count, sm_count_);
    params.rotation.positions = static_cast<const float*>(heads.rotation.data);
    params.rotation.frequencies = heads.frequencies;
    params.rotation.dims = heads.dims;
    params.rotation.head_dim = heads.head_dim;
    params.rotation.columns = (heads.num_heads + heads.num_kv_heads) * heads.head_dim;
    gemm(params);
  }

  void do_project_heads(const LinearArgs& args, const RotateHeadsArgs& heads,
                        const LoraArgs& lora) override {
    if (gemm_kernels_ != GemmKernels::kSm90 || heads.q_norm || heads.k_norm) {
      do_linear(args);
      do_add_lora(lora);
      return do_rotate_heads(heads);
    }
    // The product is rotated before it is rounded, and so is what is added to it.
    do_project_heads(args, heads);
    LoraRotation rotation;
    rotation.positions = static_cast<const float*>(heads.rotation.data);
    rotation.stride = heads.rotation.row_stride;
    rotation.frequencies = heads.frequencies;
    rotation.dims = heads.dims;
    rotation.head_dim = heads.head_dim;
    rotation.columns = (heads.num_heads + heads.num_kv_heads) * heads.head_dim;
    add_lora("project_heads", lora, rotation);
  }

  void do_add_lora(const LoraArgs& args) override { add_lora("add_lora", args, {}); }

  void do_feed_forward_up(const FeedForwardUpArgs& args) override {
    const char* op = "feed_forward_up";
    const DeviceGuard guard(device_);
    const bool fused = args.gated && gemm_kernels_ == GemmKernels::kSm90;
    const bool apart = args.gated && !fused;
    GemmParams up = gemm_params(op, args.x, args.up, apart ? Activation::kNone : args.activation,
                                {}, apart ? args.sums : args.out, args.row_count, sm_count_);
    up.gated = fused;
    gemm(up);
    if (apart) gate(args.sums, args.activation, args.out, args.row_count);
  }

  void do_activate(const ActivateArgs& args) override {
    check_compute("activate", args.x.dtype);
    check_vectors("activate", "x", args.x);
    check_vectors("activate", "out", args.out);
    const DeviceGuard guard(device_);
    launch_activate(args, stream_);
  }

  void do_feed_forward(const FeedForwardArgs& args) override {
    const DeviceGuard guard(device_);
    const DType dtype = args.x.dtype;
    const int64_t rows = args.x.rows();
    if (args.workspace == nullptr) throw InvalidArgument("feed_forward: workspace is missing");
    const bool fused = args.gated && gemm_kernels_ == GemmKernels::kSm90;
    TensorView intermediate(args.workspace, dtype, rows, args.up.out_features / (fused ? 2 : 1));
    GemmParams up = gemm_params("feed_forward", args.x, args.up,
                                args.gated && !fused ? Activation::kNone : args.activation, {},
                                intermediate, args.row_count, sm_count_);
    up.gated = fused;
    gemm(up);
    if (args.gated && !fused) {
      auto* end = static_cast<unsigned char*>(args.workspace) +
                  static_cast<size_t>(intermediate.size()) * size_of(dtype);
      const TensorView gated(end, dtype, rows, args.down.in_features);
      gate(intermediate, args.activation, gated, args.row_count);
      intermediate = gated;
    }
    gemm(gemm_params("feed_forward", intermediate, args.down, Activation::kNone, args.residual,
                     args.out, args.row_count, sm_count_));
    if (args.norm) norm_in_place(args.out, args.norm, args.row_count);
  }

  void do_neighbours(const NeighboursArgs& args) override {
    check_compute("neighbours", args.x.dtype);
    check_vectors("neighbours", "x", args.x);
    check_vectors("neighbours", "out", args.out);
    const DeviceGuard guard(device_);
    launch_neighbours(args, stream_);
  }

  void do_rotation(const RotationArgs& args) override {
    const DeviceGuard guard(device_);
    launch_rotation(args, stream_);
  }

  void do_rotate_heads(const RotateHeadsArgs& args) override {
    if (args.head_dim > 256) {
      throw InvalidArgument(concat("rotate_heads: head_dim ", args.head_dim, " is over 256"));
    }
    const DeviceGuard guard(device_);
    launch_rotate_heads(args, stream_);
  }

  void do_attention(const AttentionArgs& args) override {
    const bool disentangled = args.term.kind == ScoreTermKind::kDisentangled;
    const int widest = disentangled ? kDisentangledHeadDim : 256;
    if (args.head_dim > widest) {
      throw InvalidArgument(concat("attention: head_dim ", args.head_dim, " is over ", widest,
                                   disentangled ? ", the most with a disentangled term" : ""));
    }
    AttentionParams params = attention_params(args, sm_count_);
    const AttentionAlgorithm algorithm =
        choose_algorithm(attention_, sm90_capable_, fits_hopper(params), args.term, args.head_dim);
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

  void do_append_kv(const AppendKvArgs& args) override {
    check_append_kv(args);
    const DeviceGuard guard(device_);
    launch_append_kv(args, stream_);
  }

  void do_paged_attention(const AttentionArgs& args) override {
    PagedAttentionParams params = paged_attention_params(args, sm_count_);
    params.workspace = static_cast<float*>(args.workspace);
    params.workspace_bytes = args.workspace == nullptr ? 0 : paged_attention_workspace(args);
    params.counters = static_cast<unsigned*>(page_counters_.data());
    const DeviceGuard guard(device_);
    if (args.k && !appends_to_pages(params)) launch_append_kv(appended(args), stream_);
    launch_attention_pages(params, stream_);
  }

  void do_norm(const NormArgs& args) override {
    const DeviceGuard guard(device_);
    launch_norm(norm_params(args), stream_);
  }

  void do_pool(const PoolArgs& args) override {
    check_compute("pool", args.x.dtype);
    // Rows are read by whole vectors: the last one may end in columns that are not asked for.
    TensorView read = args.x;
    if (read.row_stride > read.columns()) {
      read.shape[1] = (read.columns() + kMultiple - 1) / kMultiple * kMultiple;
    }
    check_vectors("pool", "x", read);
    const DeviceGuard guard(device_);
    launch_pool(args, stream_);
  }

  void do_sparse_pool(const SparsePoolArgs& args) override {
    const DeviceGuard guard(device_);
    const size_t bytes = static_cast<size_t>(args.out.size()) * sizeof(float);
    CUDA_CHECK(cudaMemsetAsync(args.out.data, 0, bytes, stream_));
    pools_in_gemm(args.sum) ? pool_in_gemm(args) : pool_chunks(args);
    if (!args.sum) {
      launch_sparse_weights(args.out.as<float>(), args.out.size(), args.twice, stream_);
    }
  }

  // The GEMM pools maxima alone. Sums are formed in the order of the rows, which tiles do not keep.
  bool pools_in_gemm(bool sum) const { return gemm_kernels_ == GemmKernels::kSm90 && !sum; }

  // Writes the largest logit of each sequence and column, at least 0. `out` is zeros before.
  void pool_in_gemm(const SparsePoolArgs& args) {
    if constexpr (kBuiltForSm90) {
      const char* op = "sparse_pool";
      GemmParams params =
          gemm_params(op, args.x, args.weight, Activation::kNone, {}, {}, nullptr, sm_count_);
      params.pool.out = args.out.as<float>();
      params.pool.cu_seqlens = args.batch.cu_seqlens;
      params.pool.num_sequences = to_int32(op, "num_sequences", args.batch.num_sequences);
      params.pool.columns = to_int32(op, "columns", args.out.columns());
      launch_gemm_pooled_sm90(params, stream_);
    }
  }

  // Computes the logits of kSparsePoolRows rows at a time in the workspace, and pools each such
  // chunk into `out`, which is zeros before.
  void pool_chunks(const SparsePoolArgs& args) {
    const char* op = "sparse_pool";
    if (args.workspace == nullptr && args.x.rows() > 0) {
      throw InvalidArgument("sparse_pool: workspace is missing");
    }
    SparseChunk chunk;
    chunk.logits = args.workspace;
    chunk.stride = args.weight.out_features;
    chunk.cu_seqlens = args.batch.cu_seqlens;
    chunk.num_sequences = to_int32(op, "num_sequences", args.batch.num_sequences);
    chunk.out = args.out.as<float>();
    chunk.columns = args.out.columns();
    chunk.dtype = args.x.dtype;
    for (; chunk.first_row < args.x.rows(); chunk.first_row += kSparsePoolRows) {
      chunk.rows = std::min(kSparsePoolRows, args.x.rows() - chunk.first_row);
      TensorView x = args.x.first_rows(chunk.rows);
      x.data = args.x.as<char>() +
               static_cast<size_t>(chunk.first_row * args.x.row_stride) * size_of(args.x.dtype);
      const TensorView logits(args.workspace, args.x.dtype, chunk.rows, chunk.stride);
      gemm(gemm_params(op, x, args.weight, Activation::kNone, {}, logits, nullptr, sm_count_));
      if (args.sum) {
        launch_sparse_sum(chunk, args.twice, stream_);
      } else {
        launch_sparse_chunk(chunk, stream_);
      }
    }
  }

  void do_cast(const CastArgs& args) override {
    const DeviceGuard guard(device_);
    launch_cast(args, stream_);
  }

  void do_gather_rows(const GatherRowsArgs& args) override {
    check_compute("gather_rows", args.x.dtype);
    check_vectors("gather_rows", "x", args.x);
    check_vectors("gather_rows", "out", args.out);
    const DeviceGuard guard(device_);
    launch_gather_rows(args, stream_);
  }

  void do_clear_empty(const ClearEmptyArgs& args) override {
    const DeviceGuard guard(device_);
    launch_clear_empty(args.batch.cu_seqlens, args.out, stream_);
  }

  void do_sample(const SampleArgs& args) override {
    const DeviceGuard guard(device_);
    launch_sample(args, static_cast<SampleMerge*>(sample_merges_.data()), sm_count_, stream_);
  }

  void do_count_tokens(const CountTokensArgs& args) override {
    const DeviceGuard guard(device_);
    launch_count_tokens(args, stream_);
  }

  void do_begin_step(const BeginStepArgs& args) override {
    const DeviceGuard guard(device_);
    launch_begin_step(args, stream_);
  }

  void gemm(const GemmParams& params) {
    if constexpr (kBuiltForSm90) {
      if (gemm_kernels_ == GemmKernels::kSm90) {
        return is_few(params) ? launch_gemm_few(params, stream_)
                              : launch_gemm_sm90(params, stream_);
      }
    }
    launch_gemm_sm80(params, stream_);
  }

  // out = activation(gate) * up of the blocks that alternate in x; both are contiguous.
  void gate(const TensorView& x, Activation activation, const TensorView& out,
            const int32_t* row_count) {
    GateParams params;
    params.x = x.data;
    params.out = out.data;
    params.rows = x.rows();
    params.columns = out.columns();
    params.row_count = row_count;
    params.dtype = x.dtype;
    params.activation = activation;
    launch_gate(params, stream_);
  }

  void add_lora(const char* op, const LoraArgs& args, const LoraRotation& rotation) {
    check_compute(op, args.x.dtype);
    for (auto [name, view] : {std::pair{"x", &args.x},
                              {"a", &args.layer.a},
                              {"b", &args.layer.b},
                              {"out", &args.out}}) {
      check_vectors(op, name, *view);
    }
    const DeviceGuard guard(device_);
    launch_add_lora(args, rotation, stream_);
  }

  void norm_in_place(const TensorView& rows, const NormWeight& weight, const int32_t* row_count) {
    NormArgs args;
    args.x = rows;
    args.out = rows;
    args.norm = weight;
    args.row_count = row_count;
    launch_norm(norm_params(args), stream_);
  }

  // Terms with very many buckets or very large distances are left to the portable kernels.
  static bool fits_hopper(const AttentionParams& params) {
    if constexpr (kBuiltForSm90) return attention_sm90_supported(params);
    return false;
  }

  std::string explain_attention(AttentionAlgorithm algorithm, const AttentionParams& params) const {
    const bool narrow =
        is_narrow_window(attention_head_tile(params.head_dim), params.mask.window_left,
                         params.mask.causal ? 0 : params.mask.window_right);
    const AttentionConfig config = select_attention(
        params.head_dim, params.num_heads, params.num_tokens_q, params.max_seqlen_k,
        params.term.kind != ScoreTermKind::kNone, sm_count_, narrow);
    return concat("attention: ", params.num_heads, " heads of ", params.head_dim, ", up to ",
                  params.num_tokens_q, " tokens, up to ", params.max_seqlen_k, " in a sequence: ",
                  explain_algorithm(algorithm, params.term.kind == ScoreTermKind::kDisentangled,
                                    config, params.max_seqlen_k));
  }

  int device_;
  cudaStream_t stream_;
  bool sm90_capable_;
  GemmKernels gemm_kernels_;
  AttentionAlgorithm attention_;                      // the caller's choice, maybe kAuto
  std::vector<std::string>* explanations_ = nullptr;  // null, except while `explain` runs
  int sm_count_;
  CudaMemory counters_;       // for launch_attention_sm90; zero before and after every launch
  CudaMemory page_counters_;  // likewise, for launch_attention_pages
  CudaMemory sample_merges_;  // likewise, for launch_sample
};

}  // namespace
}  // namespace cuda

Backend make_cuda_backend(int device_index, AttentionAlgorithm attention) {
  const bool sm90_capable = cuda::check_device(device_index);
  const cuda::DeviceGuard guard(device_index);
  auto context = std::make_unique<cuda::CudaContext>(device_index);
  auto packer = std::make_unique<cuda::CudaLinearPacker>(*context);
  auto ops = std::make_unique<cuda::CudaOps>(*context, sm90_capable, attention);
  return {std::move(context), std::move(packer), std::move(ops)};
}

}  // namespace packhorse
