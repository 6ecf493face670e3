// The one boundary between models and backends.
//
// Public methods check shapes, dtypes and alignment, once, for every backend; private do_* methods
// compute. Ops of a CUDA backend are asynchronous on its stream; the CPU's return when done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/args.h"
#include "ops/device_io.h"
#include "packhorse/export.h"

namespace packhorse {

/// Memory of a device, freed with the object.
class PACKHORSE_API DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// A fixed sequence of ops that a device can run again in one launch (a CUDA graph). Buffers and
/// sizes are those of the recording; what lies in the buffers is read anew.
class PACKHORSE_API Recording {
 public:
  virtual ~Recording() = default;
  virtual void launch() = 0;
};

/// What not every backend has.
enum class Feature : uint8_t { kGatedFeedForward, kRotateHeads, kDisentangled, kNeighbours };

class PACKHORSE_API Ops {
 public:
  virtual ~Ops() = default;

  virtual Device device() const = 0;
  /// Throws RuntimeError saying what the device lacks for this dtype of a model.
  virtual void check_dtype(DType dtype) const = 0;
  /// What activations, tables and heads of a model of this dtype are in: itself, unless int8.
  virtual DType activation_dtype(DType dtype) const { return dtype; }
  /// Whether the device has kernels for it: asked before a model is loaded.
  virtual bool supports(Feature feature) const = 0;

  // Memory. `allocate` throws OutOfMemory naming what was asked and what was free.
  virtual std::unique_ptr<DeviceMemory> allocate(size_t bytes) = 0;
  virtual void upload(void* device_to, const void* host_from, size_t bytes) = 0;
  /// `host_to` is written at the next `synchronize`, or before.
  virtual void download(void* host_to, const void* device_from, size_t bytes) = 0;
  /// Downloads that were not synchronised write nothing any more.
  virtual void drop_downloads() noexcept {}
  /// Waits until everything asked so far is done; reports what failed meanwhile.
  virtual void synchronize() = 0;
  /// Records the ops that `work` asks for, without running them; null where the device gains
  /// nothing by it. `work` must have run once before, so that nothing is made at first use.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work);

  /// Milliseconds that the device spends on what `work` asks for.
  virtual double elapsed_ms(const std::function<void()>& work);

  /// Runs `work`, and says in words which kernels its ops took where there was a choice: a line for
  /// each op. Nothing where the backend has no choice.
  virtual std::vector<std::string> explain(const std::function<void()>& work) {
    work();
    return {};
  }

  /// Arrays and streams of others; null where the device's memory is the host's.
  virtual DeviceIo* device_io() { return nullptr; }

  /// body(i) for every i in [0, count): host work in independent pieces, spread over the threads of
  /// the backend where it has any. Throws the first exception of a body.
  virtual void for_each(int64_t count, const std::function<void(int64_t)>& body);

  // Weights. The layout of a linear layer is the backend's own.
  virtual size_t linear_bytes(int64_t in_features, int64_t out_features, DType dtype) const = 0;
  /// `weight`: host float32 [out_features, in_features]; `packed`: linear_bytes of device memory.
  virtual void pack_linear(const float* weight, int64_t in_features, int64_t out_features,
                           DType dtype, void* packed) = 0;
  /// The same of an int8 layer that is quantised already: `scales` [out_features].
  virtual void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                              int64_t out_features, void* packed);
  /// What the widths of a model have to be a multiple of; that of feed-forward blocks is padded.
  virtual int64_t width_multiple() const { return 1; }
  /// Head sizes are zero-padded to a multiple of this when weights are loaded.
  virtual int64_t head_dim_multiple() const = 0;
  /// Whether columns that are rotated together are to lie side by side in the heads of queries and
  /// keys: weights are then laid out so. Scores, sums over all columns, do not change by it.
  virtual bool interleaves_heads() const { return false; }
  /// Columns of RotationArgs::out.
  virtual int64_t rotation_columns(int64_t dims) const { return dims; }

  // Scratch that an op needs for at most `rows` rows; the caller plans it in its arena.
  virtual size_t linear_workspace(int64_t rows, int64_t in_features, int64_t out_features,
                                  DType dtype) const = 0;
  virtual size_t feed_forward_workspace(int64_t rows, int64_t hidden_size,
                                        int64_t intermediate_size, bool gated,
                                        DType dtype) const = 0;
  /// `max_seqlen` bounds one sequence's keys, `num_tokens` the queries of the batch.
  virtual size_t attention_workspace(int64_t num_tokens, int64_t num_sequences, int64_t max_seqlen,
                                     int64_t num_heads, int64_t head_dim, DType dtype) const = 0;
  virtual size_t sparse_pool_workspace(int64_t rows, int64_t in_features, int64_t out_features,
                                       bool sum, DType dtype) const = 0;

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
};

/// What was downloaded and not synchronised when an exception leaves the scope is dropped: the
/// memory that it should have gone to may be gone, too.
class DownloadScope {
 public:
  explicit DownloadScope(Ops& ops) : ops_(ops) {}
  ~DownloadScope() { ops_.drop_downloads(); }
  DownloadScope(const DownloadScope&) = delete;
  DownloadScope& operator=(const DownloadScope&) = delete;

 private:
  Ops& ops_;
};

}  // namespace packhorse
