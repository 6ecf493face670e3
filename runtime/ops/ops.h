// The operators that a backend computes. Together with device_context.h and linear_packer.h this is
// the only boundary between models and backends. args/ has the arguments, and ops_*.cc the checks
// of them, a file for each family of operators.
//
// The public methods check shapes, dtypes and alignment once for every backend; the private do_*
// methods compute. The operators of a CUDA backend are asynchronous on its stream; those of the CPU
// are done when they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/args/attention.h"
#include "ops/args/audio.h"
#include "ops/args/cca.h"
#include "ops/args/dense.h"
#include "ops/args/lora.h"
#include "ops/args/moe.h"
#include "ops/args/patches.h"
#include "ops/args/rowwise.h"
#include "ops/args/sampling.h"
#include "packhorse/export.h"

namespace packhorse {

class PACKHORSE_API Ops {
 public:
  virtual ~Ops() = default;

  /// Runs `work` and returns one line for each operator that had a choice of kernels, saying in
  /// words which kernel it took. A backend without such choices returns nothing.
  virtual std::vector<std::string> explain(const std::function<void()>& work) {
    work();
    return {};
  }

  // Requirements of the device on shapes. Weights and buffers are laid out accordingly.
  /// Hidden states, embedding tables and feed-forward blocks are padded with zeros to a multiple of
  /// this number when weights are loaded.
  virtual int64_t width_multiple() const { return 1; }
  /// Bytes of a line of memory, where products are faster if rows of their input begin one: a
  /// multiple of width_multiple() 16-bit numbers. 1 where that makes no difference.
  virtual int64_t line_bytes() const { return 1; }
  /// True where `embed` decodes rows as it reads: of weights in groups, and of 16-bit floats into
  /// float32 (EmbedArgs::word).
  virtual bool embeds_stored_rows() const { return false; }
  /// True where `embed` takes given rows (EmbedArgs::rows).
  virtual bool takes_rows() const { return false; }
  /// Head sizes are zero-padded to a multiple of this when weights are loaded.
  virtual int64_t head_dim_multiple() const = 0;
  /// True where the two columns that a rotation combines lie side by side in the heads of queries
  /// and keys. Weights are then laid out that way when they are loaded. Scores do not change,
  /// because they are sums over all columns of a head.
  virtual bool interleaves_heads() const { return false; }
  /// True if Float8Rows of so many columns can be asked for, where the device's LinearPacker has
  /// the format kFloat8.
  virtual bool quantizes_rows(int64_t /*columns*/) const { return false; }
  /// True if, there, attention of heads of this size and with this kind of term can write kFloat8.
  /// The term's sizes are read, its tables are not.
  virtual bool attention_writes_float8(int64_t /*head_dim*/, const ScoreTerm& /*term*/) const {
    return false;
  }
  /// The number of columns of RotationArgs::out, over a grid or not.
  virtual int64_t rotation_columns(int64_t dims, bool /*grid*/) const { return dims; }

  // The bytes of scratch that an operator needs for arguments of these shapes and dtypes, and for
  // any with at most as many rows, tokens and sequences. The caller plans them in its arena. Data
  // pointers in the arguments are not read.
  virtual size_t linear_workspace(const LinearArgs& args) const = 0;
  virtual size_t feed_forward_workspace(const FeedForwardArgs& args) const = 0;
  virtual size_t attention_workspace(const AttentionArgs& args) const = 0;
  /// Scratch of attention over pages, where `pages` has bounds but may have no addresses yet.
  virtual size_t paged_attention_workspace(const AttentionArgs& args) const = 0;
  virtual size_t sparse_pool_workspace(const SparsePoolArgs& args) const = 0;
  virtual size_t sample_workspace(const SampleArgs& args) const = 0;
  /// True if `sample` takes logits of this dtype as they are, as SampleArgs::source.
  virtual bool samples(DType /*dtype*/) const { return false; }
  /// Throws InvalidArgument where heads are wider than the device takes.
  virtual size_t cca_workspace(const CcaArgs& args) const = 0;
  /// Throws RuntimeError where there are more experts than the device takes.
  virtual size_t moe_workspace(const MoeArgs& args) const = 0;

  // The operators. Each throws InvalidArgument if its arguments do not fit together.
  void embed(const EmbedArgs& args);
  void linear(const LinearArgs& args);
  void feed_forward(const FeedForwardArgs& args);
  void unfold(const UnfoldArgs& args);
  void rotation(const RotationArgs& args);
  /// Computes `linear`, then does with q and k, which are columns of args.out, what `heads` says.
  /// This is one operator so that a backend may rotate values before it rounds them.
  void qkv_rope(const LinearArgs& args, const RopeArgs& heads);
  /// Adds what adapters make of x to args.out before heads are normalised and rotated.
  void qkv_rope(const LinearArgs& args, const RopeArgs& heads, const LoraArgs& lora);
  /// Rotates rows that are projected already.
  void rope(const RopeArgs& args);
  void cca(const CcaArgs& args);
  void append_kv_cache(const AppendKvCacheArgs& args);
  void attention(const AttentionArgs& args);
  void attention_weights(const AttentionWeightsArgs& args);
  void norm(const NormArgs& args);
  void pool(const PoolArgs& args);
  void sparse_pool(const SparsePoolArgs& args);
  void cast(const CastArgs& args);
  void log_softmax(const LogSoftmaxArgs& args);
  void sample(const SampleArgs& args);
  void count_tokens(const CountTokensArgs& args);
  void begin_step(const BeginStepArgs& args);
  void add_lora(const LoraArgs& args);
  void feed_forward_up(const FeedForwardUpArgs& args);
  void activate(const ActivateArgs& args);
  void moe(const MoeArgs& args);
  void add_scaled(const AddScaledArgs& args);
  void embed_patches(const EmbedPatchesArgs& args);
  void probe_attention(const ProbeAttentionArgs& args);
  /// Throws InvalidArgument on the CPU, whose frames audio/log_mel.h makes.
  void mel_logs(const MelLogsArgs& args);

 private:
  virtual void do_embed(const EmbedArgs& args) = 0;
  virtual void do_linear(const LinearArgs& args) = 0;
  virtual void do_feed_forward(const FeedForwardArgs& args) = 0;
  virtual void do_unfold(const UnfoldArgs& args) = 0;
  virtual void do_rotation(const RotationArgs& args) = 0;
  virtual void do_rope(const RopeArgs& args) = 0;
  virtual void do_qkv_rope(const LinearArgs& args, const RopeArgs& heads) {
    do_linear(args);
    do_rope(heads);
  }
  virtual void do_qkv_rope(const LinearArgs& args, const RopeArgs& heads, const LoraArgs& lora) {
    do_linear(args);
    do_add_lora(lora);
    do_rope(heads);
  }
  virtual void do_cca(const CcaArgs& args) = 0;
  virtual void do_append_kv_cache(const AppendKvCacheArgs& args) = 0;
  virtual void do_attention(const AttentionArgs& args) = 0;
  virtual void do_paged_attention(const AttentionArgs& args) = 0;
  virtual void do_attention_weights(const AttentionWeightsArgs& args) = 0;
  virtual void do_norm(const NormArgs& args) = 0;
  virtual void do_pool(const PoolArgs& args) = 0;
  virtual void do_sparse_pool(const SparsePoolArgs& args) = 0;
  virtual void do_cast(const CastArgs& args) = 0;
  virtual void do_log_softmax(const LogSoftmaxArgs& args) = 0;
  virtual void do_sample(const SampleArgs& args) = 0;
  virtual void do_count_tokens(const CountTokensArgs& args) = 0;
  virtual void do_begin_step(const BeginStepArgs& args) = 0;
  virtual void do_add_lora(const LoraArgs& args) = 0;
  virtual void do_feed_forward_up(const FeedForwardUpArgs& args) = 0;
  virtual void do_activate(const ActivateArgs& args) = 0;
  virtual void do_moe(const MoeArgs& args) = 0;
  virtual void do_add_scaled(const AddScaledArgs& args) = 0;
  virtual void do_embed_patches(const EmbedPatchesArgs& args) = 0;
  virtual void do_probe_attention(const ProbeAttentionArgs& args) = 0;
  virtual void do_mel_logs(const MelLogsArgs& args);
};

}  // namespace packhorse
