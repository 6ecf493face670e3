// The operators of the CUDA backend. Each checks what CUDA needs beyond what Ops has checked, and
// launches its kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/arg_checks.h"
#include "cuda/attention/attention.h"
#include "cuda/device/context.h"
#include "cuda/device/memory.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernel_choice.h"
#include "ops/ops.h"
#include "packhorse/attention_algorithm.h"

namespace packhorse::cuda {

/// The operators of one device, in its stream: cuda_ops_*.cc, a file for each family.
class CudaOps final : public Ops {
 public:
  /// `context` must outlive the object.
  CudaOps(CudaContext& context, AttentionAlgorithm attention);
  ~CudaOps() override;

  std::vector<std::string> explain(const std::function<void()>& work) override;

  int64_t width_multiple() const override { return kMultiple; }
  int64_t line_bytes() const override { return 128; }
  int64_t head_dim_multiple() const override { return kMultiple; }
  bool interleaves_heads() const override { return true; }
  bool quantizes_rows(int64_t columns) const override;
  bool attention_writes_float8(int64_t head_dim, const ScoreTerm& term) const override;
  // A token's position, or the two angles of a cell: rotation.cuh needs nothing else.
  int64_t rotation_columns(int64_t, bool grid) const override { return grid ? 2 : 1; }
  size_t linear_workspace(const LinearArgs& args) const override;
  size_t feed_forward_workspace(const FeedForwardArgs& args) const override;
  size_t attention_workspace(const AttentionArgs& args) const override;
  size_t paged_attention_workspace(const AttentionArgs& args) const override;
  size_t sparse_pool_workspace(const SparsePoolArgs& args) const override;
  bool samples(DType dtype) const override {
    return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  }
  size_t sample_workspace(const SampleArgs& args) const override {
    return static_cast<size_t>(args.num_biases + 1) * sizeof(float);
  }
  size_t cca_workspace(const CcaArgs& args) const override;
  size_t moe_workspace(const MoeArgs& args) const override;

 private:
  void do_embed(const EmbedArgs& args) override;
  void do_linear(const LinearArgs& args) override;
  void do_qkv_rope(const LinearArgs& args, const RopeArgs& heads) override;
  void do_qkv_rope(const LinearArgs& args, const RopeArgs& heads, const LoraArgs& lora) override;
  void do_add_lora(const LoraArgs& args) override;
  void do_feed_forward_up(const FeedForwardUpArgs& args) override;
  void do_activate(const ActivateArgs& args) override;
  void do_feed_forward(const FeedForwardArgs& args) override;
  void do_unfold(const UnfoldArgs& args) override;
  void do_rotation(const RotationArgs& args) override;
  void do_rope(const RopeArgs& args) override;
  void do_cca(const CcaArgs& args) override;
  void do_attention(const AttentionArgs& args) override;
  void do_append_kv_cache(const AppendKvCacheArgs& args) override;
  void do_paged_attention(const AttentionArgs& args) override;
  void do_attention_weights(const AttentionWeightsArgs& args) override;
  void do_norm(const NormArgs& args) override;
  void do_pool(const PoolArgs& args) override;
  void do_sparse_pool(const SparsePoolArgs& args) override;

  // The GEMM pools maxima alone. Sums are formed in the order of the rows, which tiles do not keep.
  bool pools_in_gemm(bool sum) const { return gemm_kernels_ == GemmKernels::kSm90 && !sum; }
  // Writes the largest logit of each sequence and column, at least 0. `out` is zeros before.
  void pool_in_gemm(const SparsePoolArgs& args);
  // Computes the logits of kSparsePoolRows rows at a time in the workspace, and pools each such
  // chunk into `out`, which is zeros before.
  void pool_chunks(const SparsePoolArgs& args);

  void do_log_softmax(const LogSoftmaxArgs& args) override;
  void do_cast(const CastArgs& args) override;
  void do_sample(const SampleArgs& args) override;
  void do_count_tokens(const CountTokensArgs& args) override;
  void do_begin_step(const BeginStepArgs& args) override;
  void do_moe(const MoeArgs& args) override;
  void do_add_scaled(const AddScaledArgs& args) override;
  void do_embed_patches(const EmbedPatchesArgs& args) override;
  void do_probe_attention(const ProbeAttentionArgs& args) override;
  void do_mel_logs(const MelLogsArgs& args) override;

  void gemm(const GemmParams& params);
  // True if the GEMM that computes heads can rotate them.
  bool rotates_in_gemm(const LinearArgs& args, const RopeArgs& heads) const;
  void feed_forward_float8(const FeedForwardArgs& args);
  // Returns the bytes of a feed-forward block's workspace that hold what lies between its two
  // layers.
  size_t inner_bytes(const FeedForwardArgs& args) const;
  // x, or where the weight has an order of its own x in that order, which is put into `workspace`.
  TensorView in_order(const char* op, const TensorView& x, const LinearWeight& weight,
                      void* workspace, const int32_t* row_count);
  LinearArgs in_order(const char* op, const LinearArgs& args);
  size_t int8_workspace(const LinearArgs& args) const;
  size_t int8_workspace(const FeedForwardArgs& args) const;
  void linear_int8(const LinearArgs& args);
  void feed_forward_int8(const FeedForwardArgs& args);
  // linear_int8 with the norm left out. Its workspace is int8_workspace bytes.
  void product_int8(const char* op, const LinearArgs& args);
  void add_lora(const char* op, const LoraArgs& args, const RopeArgs& heads);
  void norm(const NormArgs& args);
  // The norm of rows that a dense layer gave, in their place.
  void norm_in_place(const TensorView& rows, const NormWeight& weight, const Float8Rows& quantized,
                     const int32_t* row_count);
  std::string explain_attention(AttentionAlgorithm algorithm, const AttentionArgs& args) const;

  int device_;
  const KernelStream& stream_;
  GemmKernels gemm_kernels_;
  AttentionAlgorithm attention_;                      // the caller's choice, maybe kAuto
  std::vector<std::string>* explanations_ = nullptr;  // null, except while `explain` runs
  CudaMemory counters_;       // for launch_attention_sm90; zero before and after every launch
  CudaMemory page_counters_;  // for launch_attention_pages, zero as well
};

}  // namespace packhorse::cuda
