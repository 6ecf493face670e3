// The operators of the CPU backend, each of which forwards to its kernels.
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

#include "cpu/attention/attention.h"
#include "cpu/cca/cca.h"
#include "cpu/cpu_backend.h"
#include "cpu/cpu_context.h"
#include "cpu/cpu_packer.h"
#include "cpu/gemm/linear.h"
#include "cpu/gemm/sparse_pool.h"
#include "cpu/isa/kernels.h"
#include "cpu/moe/moe.h"
#include "cpu/patches/patches.h"
#include "cpu/rowwise/rowwise.h"
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
    return cpu::attention_workspace(args, pool_.threads());
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
  bool takes_rows() const override { return true; }
  size_t moe_workspace(const MoeArgs& args) const override {
    return cpu::moe_workspace(args, pool_.threads());
  }

 private:
  /// Computes one operator at a time. A function takes its arguments and, in this order, what it
  /// needs of products, kernels and threads. Throws RuntimeError where the processor lacks a dtype.
  template <class Args, class Function>
  void run(std::initializer_list<DType> dtypes, const Args& args, const Function& function) {
    for (const DType dtype : dtypes) CpuContext::check_rows(dtype);
    const CpuContext::Use use(context_);
    if constexpr (std::is_invocable_v<Function, Args, GemmSet&, const Kernels&, ThreadPool&>) {
      function(args, gemms_, kernels_, pool_);
    } else if constexpr (std::is_invocable_v<Function, Args, const Kernels&, ThreadPool&>) {
      function(args, kernels_, pool_);
    } else if constexpr (std::is_invocable_v<Function, Args, ThreadPool&>) {
      function(args, pool_);
    } else {
      function(args);
    }
  }
  template <class Args, class Function>
  void run(const TensorView& x, const Args& args, const Function& function) {
    run({x.dtype}, args, function);
  }

  // The dtype that computes with pages.
  static DType page_dtype(const PagedKvCache& pages) {
    return pages.keys.dtype == DType::kFloat8 ? DType::kFloat32 : pages.keys.dtype;
  }

  void do_embed(const EmbedArgs& args) override { run(args.out, args, cpu::embed); }
  void do_linear(const LinearArgs& args) override { run(args.x, args, cpu::linear); }
  void do_feed_forward(const FeedForwardArgs& args) override {
    run(args.x, args, cpu::feed_forward);
  }
  void do_feed_forward_up(const FeedForwardUpArgs& args) override {
    do_linear({.x = args.x,
               .weight = args.up,
               .activation = args.gated ? Activation::kNone : args.activation,
               .residual = {},
               .norm = {},
               .out = args.gated ? args.sums : args.out,
               .workspace = args.workspace});
    if (!args.gated) return;
    do_activate({.x = args.sums, .activation = args.activation, .gated = true, .out = args.out});
  }
  void do_sparse_pool(const SparsePoolArgs& args) override { run(args.x, args, cpu::sparse_pool); }

  void do_unfold(const UnfoldArgs& args) override { run(args.x, args, cpu::unfold); }
  void do_norm(const NormArgs& args) override { run(args.x, args, cpu::norm); }
  void do_activate(const ActivateArgs& args) override { run(args.x, args, cpu::activate); }
  void do_pool(const PoolArgs& args) override { run(args.x, args, cpu::pool_sequences); }
  void do_cast(const CastArgs& args) override {
    run({args.x.dtype, args.out.dtype}, args, cpu::cast);
  }

  void do_log_softmax(const LogSoftmaxArgs& args) override { run(args.x, args, cpu::log_softmax); }

  void do_rotation(const RotationArgs& args) override { run({}, args, cpu::rotation); }
  void do_rope(const RopeArgs& args) override { run(args.q, args, cpu::rope); }
  void do_attention(const AttentionArgs& args) override { run(args.q, args, cpu::attention); }
  void do_append_kv_cache(const AppendKvCacheArgs& args) override {
    run({args.k.dtype, page_dtype(args.pages)}, args, cpu::append_kv_cache);
  }
  void do_paged_attention(const AttentionArgs& args) override {
    run({args.q.dtype, page_dtype(args.pages)}, args,
        [](const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool) {
          if (args.k) cpu::append_kv_cache(appended(args), kernels, pool);
          cpu::paged_attention(args, kernels, pool);
        });
  }
  void do_attention_weights(const AttentionWeightsArgs& args) override {
    run({args.q.dtype, page_dtype(args.pages)}, args, cpu::attention_weights);
  }
  void do_cca(const CcaArgs& args) override { run(args.latents, args, cpu::cca); }

  void do_moe(const MoeArgs& args) override { run(args.x, args, cpu::moe); }
  void do_add_scaled(const AddScaledArgs& args) override { run(args.x, args, cpu::add_scaled); }
  void do_embed_patches(const EmbedPatchesArgs& args) override {
    run(args.x, args, cpu::embed_patches);
  }
  void do_probe_attention(const ProbeAttentionArgs& args) override {
    run(args.keys, args, cpu::probe_attention);
  }
  void do_add_lora(const LoraArgs& args) override { run(args.x, args, cpu::add_lora); }

  void do_sample(const SampleArgs& args) override { run({}, args, cpu::sample); }
  void do_count_tokens(const CountTokensArgs& args) override { run({}, args, cpu::count_tokens); }
  void do_begin_step(const BeginStepArgs& args) override { run({}, args, cpu::begin_step); }

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
