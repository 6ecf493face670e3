// The computation of a backend: with device_context.h and linear_packer.h the one boundary between
// models and backends.
//
// Public methods check shapes, dtypes and alignment, once, for every backend; private do_* methods
// compute. Ops of a CUDA backend are asynchronous on its stream; the CPU's return when done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/args.h"
#include "ops/row_args.h"
#include "packhorse/export.h"

namespace packhorse {

class PACKHORSE_API Ops {
 public:
  virtual ~Ops() = default;

  /// Runs `work`, and says in words which kernels its ops took where there was a choice: a line for
  /// each op. Nothing where the backend has no choice.
  virtual std::vector<std::string> explain(const std::function<void()>& work) {
    work();
    return {};
  }

  // The shapes that the device takes: weights and buffers are laid out so.
  /// Hidden states, embedding tables and feed-forward blocks are zero-padded to a multiple of this.
  virtual int64_t width_multiple() const { return 1; }
  /// Head sizes are zero-padded to a multiple of this when weights are loaded.
  virtual int64_t head_dim_multiple() const = 0;
  /// Whether columns that are rotated together are to lie side by side in the heads of queries and
  /// keys: weights are then laid out so. Scores, sums over all columns, do not change by it.
  virtual bool interleaves_heads() const { return false; }
  /// Columns of RotationArgs::out.
  virtual int64_t rotation_columns(int64_t dims) const { return dims; }

  // Scratch that an op with such shapes and dtypes needs, for at most as many rows, tokens and
  // sequences; the caller plans it in its arena. Pointers are not looked at.
  virtual size_t linear_workspace(const LinearArgs& args) const = 0;
  virtual size_t feed_forward_workspace(const FeedForwardArgs& args) const = 0;
  virtual size_t attention_workspace(const AttentionArgs& args) const = 0;
  virtual size_t sparse_pool_workspace(const SparsePoolArgs& args) const = 0;

  // Ops. Throw InvalidArgument where the arguments do not fit together.
  void embed(const EmbedArgs& args);
  void linear(const LinearArgs& args);
  void feed_forward(const FeedForwardArgs& args);
  void neighbours(const NeighboursArgs& args);
  void rotation(const RotationArgs& args);
  /// linear, then what `heads` says happens to q and k, columns of args.out. One op, so that a
  /// backend may rotate what it has not rounded yet.
  void project_heads(const LinearArgs& args, const RotateHeadsArgs& heads);
  void attention(const AttentionArgs& args);
  void norm(const NormArgs& args);
  void pool(const PoolArgs& args);
  void sparse_pool(const SparsePoolArgs& args);
  void cast(const CastArgs& args);
  void gather_rows(const GatherRowsArgs& args);
  void clear_empty(const ClearEmptyArgs& args);

 private:
  virtual void do_embed(const EmbedArgs& args) = 0;
  virtual void do_linear(const LinearArgs& args) = 0;
  virtual void do_feed_forward(const FeedForwardArgs& args) = 0;
  virtual void do_neighbours(const NeighboursArgs& args) = 0;
  virtual void do_rotation(const RotationArgs& args) = 0;
  virtual void do_rotate_heads(const RotateHeadsArgs& args) = 0;
  virtual void do_project_heads(const LinearArgs& args, const RotateHeadsArgs& heads) {
    do_linear(args);
    do_rotate_heads(heads);
  }
  virtual void do_attention(const AttentionArgs& args) = 0;
  virtual void do_norm(const NormArgs& args) = 0;
  virtual void do_pool(const PoolArgs& args) = 0;
  virtual void do_sparse_pool(const SparsePoolArgs& args) = 0;
  virtual void do_cast(const CastArgs& args) = 0;
  virtual void do_gather_rows(const GatherRowsArgs& args) = 0;
  virtual void do_clear_empty(const ClearEmptyArgs& args) = 0;
};

}  // namespace packhorse
