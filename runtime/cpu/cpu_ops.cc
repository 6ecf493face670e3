// The operators of the CPU backend, each of which forwards to its kernels.
#include <memory>
#include <utility>

#include "cpu/attention/attention.h"
#include "cpu/attention/paged_attention.h"
#include "cpu/cca/cca.h"
#include "cpu/cpu_backend.h"
#include "cpu/cpu_context.h"
#include "cpu/cpu_packer.h"
#include "cpu/gemm/linear.h"
#include "cpu/gemm/sparse_pool.h"
#include "cpu/isa/kernels.h"
#include "cpu/moe/moe.h"
#include "cpu/rowwise/lora.h"
#include "cpu/rowwise/row_ops.h"
#include "cpu/sampling/sampling.h"

namespace packhorse {
namespace cpu {
namespace {

class CpuOps final : public Ops {
 public:
  /// `context` must outlive this object.
  explicit CpuOps(CpuContext& context)
      : context_(context),
        kernels_(kernels_here()),
        pool_(context.pool()),
        gemms_(pool_.threads()) {}

  int64_t head_dim_multiple() const override { return 16; }

  size_t linear_workspace(const LinearArgs& args) const override {
    return cpu::linear_workspace(args, pool_.threads());
  }
  size_t feed_forward_workspace(const FeedForwardArgs& args) const override {
    return cpu::feed_forward_workspace(args, pool_.threads());
  }
  size_t attention_workspace(const AttentionArgs& args) const override {
    return cpu::attention_workspace(args.queries.num_sequences, args.head_dim, pool_.threads());
  }
  size_t paged_attention_workspace(const AttentionArgs& args) const override {
    return cpu::paged_attention_workspace(args, pool_.threads());
  }
  size_t sparse_pool_workspace(const SparsePoolArgs& args) const override {
    return cpu::sparse_pool_workspace(args.weight.in_features, args.x.dtype, pool_.threads());
  }
  size_t sample_workspace(const SampleArgs& args) const override {
    return cpu::sample_workspace(args.logits.columns(), args.num_biases, pool_.threads());
  }
  size_t cca_workspace(const CcaArgs& args) const override {
    return cpu::cca_workspace(args, pool_.threads());
  }
  bool embeds_stored_rows() const override { return true; }
  size_t moe_workspace(const MoeArgs& args) const override {
    return cpu::moe_workspace(args, pool_.threads());
  }

 private:
  using Use = CpuContext::Use;

  void check_pages(const PagedKvCache& pages) const {
    if (pages.keys.dtype != DType::kFloat8) context_.check_dtype(pages.keys.dtype);
  }

  void do_embed(const EmbedArgs& args) override {
    context_.check_dtype(args.out.dtype);
    const Use use(context_);
    cpu::embed(args, kernels_, pool_);
  }
  void do_linear(const LinearArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::linear(args, gemms_, kernels_, pool_);
  }
  void do_feed_forward(const FeedForwardArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::feed_forward(args, gemms_, kernels_, pool_);
  }
  void do_unfold(const UnfoldArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::unfold(args, pool_);
  }
  void do_rotation(const RotationArgs& args) override {
    const Use use(context_);
    cpu::rotation(args, pool_);
  }
  void do_rope(const RopeArgs& args) override {
    context_.check_dtype(args.q.dtype);
    const Use use(context_);
    cpu::rope(args, kernels_, pool_);
  }
  void do_attention(const AttentionArgs& args) override {
    context_.check_dtype(args.q.dtype);
    const Use use(context_);
    cpu::attention(args, kernels_, pool_);
  }
  void do_cca(const CcaArgs& args) override {
    context_.check_dtype(args.latents.dtype);
    const Use use(context_);
    cpu::cca(args, kernels_, pool_);
  }
  void do_append_kv_cache(const AppendKvCacheArgs& args) override {
    context_.check_dtype(args.k.dtype);
    check_pages(args.pages);
    const Use use(context_);
    cpu::append_kv_cache(args, kernels_, pool_);
  }
  void do_paged_attention(const AttentionArgs& args) override {
    context_.check_dtype(args.q.dtype);
    check_pages(args.pages);
    const Use use(context_);
    if (args.k) cpu::append_kv_cache(appended(args), kernels_, pool_);
    cpu::paged_attention(args, kernels_, pool_);
  }
  void do_norm(const NormArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::norm(args, kernels_, pool_);
  }
  void do_pool(const PoolArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::pool_sequences(args, kernels_, pool_);
  }
  void do_sparse_pool(const SparsePoolArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::sparse_pool(args, gemms_, kernels_, pool_);
  }
  void do_cast(const CastArgs& args) override {
    context_.check_dtype(args.x.dtype);
    context_.check_dtype(args.out.dtype);
    const Use use(context_);
    cpu::cast(args, kernels_, pool_);
  }
  void do_gather_rows(const GatherRowsArgs& args) override {
    const Use use(context_);
    cpu::gather_rows(args, pool_);
  }
  void do_clear_empty(const ClearEmptyArgs& args) override {
    const Use use(context_);
    cpu::clear_empty(args);
  }
  void do_sample(const SampleArgs& args) override {
    const Use use(context_);
    cpu::sample(args, pool_);
  }
  void do_count_tokens(const CountTokensArgs& args) override {
    const Use use(context_);
    cpu::count_tokens(args);
  }
  void do_begin_step(const BeginStepArgs& args) override {
    const Use use(context_);
    cpu::begin_step(args);
  }

  void do_add_lora(const LoraArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::add_lora(args, kernels_, pool_);
  }
  void do_feed_forward_up(const FeedForwardUpArgs& args) override {
    LinearArgs up;
    up.x = args.x;
    up.weight = args.up;
    up.out = args.gated ? args.sums : args.out;
    up.activation = args.gated ? Activation::kNone : args.activation;
    up.workspace = args.workspace;
    do_linear(up);
    if (!args.gated) return;
    const Use use(context_);
    cpu::gate(args.sums, args.activation, args.out, kernels_, pool_);
  }
  void do_activate(const ActivateArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::activate(args, kernels_, pool_);
  }

  void do_moe(const MoeArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::moe(args, gemms_, kernels_, pool_);
  }
  void do_add_scaled(const AddScaledArgs& args) override {
    context_.check_dtype(args.x.dtype);
    const Use use(context_);
    cpu::add_scaled(args, pool_);
  }

  CpuContext& context_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  GemmSet gemms_;
};

}  // namespace
}  // namespace cpu

Backend make_cpu_backend(const BackendOptions& options) {
  auto context = std::make_unique<cpu::CpuContext>(options);
  auto packer = std::make_unique<cpu::CpuLinearPacker>(*context);
  auto ops = std::make_unique<cpu::CpuOps>(*context);
  return {std::move(context), std::move(packer), std::move(ops)};
}

}  // namespace packhorse
