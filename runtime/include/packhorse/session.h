// The main header of the public C++ API: load a model once, then run packed batches on it from any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "packhorse/attention_algorithm.h"
#include "packhorse/device_array.h"
#include "packhorse/error.h"
#include "packhorse/export.h"
#include "packhorse/memory_plan.h"
#include "packhorse/packed_patches.h"
#include "packhorse/packed_tokens.h"
#include "packhorse/types.h"
#include "packhorse/weight_source.h"

namespace packhorse {

struct SessionOptions {
  Device device;
  DType dtype = DType::kFloat32;
  int64_t max_tokens = 8192;    // T of the largest batch
  int64_t max_sequences = 256;  // B of the largest batch
  int threads = 0;              // CPU threads, including the caller's; 0: all available cores
  bool pin_threads = false;     // whether each CPU worker stays on one core of the affinity mask
  /// Bytes of weights and arena together. If the model needs more, loading throws OutOfMemory.
  std::optional<size_t> memory_limit;
  /// Number of runs that may have results on the device at the same time. Ignored on the CPU.
  int output_slots = 2;
  /// The number of rows of the largest PackedTokens::prediction_rows. If it is 0, weights that only
  /// `predictions` needs are not loaded.
  int64_t max_predictions = 0;
  AttentionAlgorithm attention_algorithm = AttentionAlgorithm::kAuto;  // kAuto on the CPU
};

/// The names of the members of PerOutput, in order.
inline constexpr std::array<const char*, 8> kOutputNames = {
    "hidden", "embedding", "pooled", "logits", "token_weights", "vectors", "sparse", "predictions"};

/// One value for each output that a model may have. T is the number of tokens and B the number of
/// sequences in the batch. docs/developer/spec.md says which parts of a spec each output needs.
template <class Value>
struct PerOutput {
  Value hidden{};         // [T, hidden_size] last hidden state
  Value embedding{};      // [B, embedding columns] pooled and normalised as the spec says
  Value pooled{};         // [B, hidden_size] output of the pooler head
  Value logits{};         // [B or T, num_labels] logits of the classifier
  Value token_weights{};  // [T, 1] weight of each token in lexical matching
  Value vectors{};        // [T, size] vector of each token, for late interaction
  Value sparse{};         // [B, vocab_size] sparse vector of the vocabulary (SPLADE)
  Value predictions{};    // [prediction_rows, vocab_size] logits of the language model

  Value& operator[](size_t i) {
    const std::array<Value*, kOutputNames.size()> values = {
        &hidden, &embedding, &pooled, &logits, &token_weights, &vectors, &sparse, &predictions};
    return *values[i];
  }
  const Value& operator[](size_t i) const { return const_cast<PerOutput&>(*this)[i]; }
};

/// Where a run writes its outputs, in host memory that the caller owns. An output whose pointer is
/// null is not computed.
using RunOutputs = PerOutput<float*>;

/// Which outputs a run computes and leaves on the device.
using DeviceOutputSet = PerOutput<bool>;

/// The outputs of a run on the device. An output that was not wanted is null. `hidden` and `pooled`
/// have the dtype in which the session computes, the others are float32. Together the outputs of a
/// run lease one of `output_slots` until the last of them is destroyed. They keep the session
/// alive.
using DeviceOutputs = PerOutput<std::shared_ptr<DeviceArray>>;

/// The shape of one output: [T, columns] if it is per token, otherwise [B, columns], except that
/// `predictions` is [M, columns] for M prediction rows.
struct OutputShape {
  std::string name;  // one of kOutputNames
  bool per_token = false;
  int64_t columns = 0;
};

/// A loaded model. `run` may be called from many threads at once; the calls wait for each other.
/// After any error the session stays usable.
class PACKHORSE_API Session {
 public:
  /// Loads a converted folder, which holds packhorse.json (the spec) and model.safetensors. Throws
  /// InvalidArgument for a wrong option, spec or file, RuntimeError if the device or the dtype is
  /// not available, and OutOfMemory.
  static std::shared_ptr<Session> load(const std::string& folder, const SessionOptions& options);
  /// Loads from a spec (JSON text, docs/developer/spec.md) and weights under the names that
  /// docs/developer/tensors.md lists. Throws as the other `load`.
  static std::shared_ptr<Session> load(const std::string& spec_json, const WeightSource& weights,
                                       const SessionOptions& options);
  virtual ~Session() = default;

  /// Runs one batch and returns when all outputs are written. Throws InvalidArgument if the batch
  /// is not acceptable, and RuntimeError.
  virtual void run(const PackedTokens& batch, const RunOutputs& outputs) = 0;
  /// Runs one batch of images, on models that take patches. Per-token outputs have the rows that
  /// the model puts before the patches of an image, too. Throws as the other `run`.
  virtual void run(const PackedPatches& batch, const RunOutputs& outputs) = 0;

  /// Runs one batch of images whose patches lie on the device, complete on `stream`, or on the
  /// session's own stream if that is 0. Throws as the other `run`, and InvalidArgument on the CPU.
  virtual void run(const DevicePatches& batch, const RunOutputs& outputs,
                   StreamHandle stream = 0) = 0;

  /// Runs one batch and leaves the results on the device; the host does not wait. The run starts
  /// after all work that `stream` has been asked for so far, and work that `stream` is asked for
  /// from now on starts after the run. Throws as `run` does, RuntimeError if no output slot is
  /// free, and InvalidArgument on the CPU.
  virtual DeviceOutputs run_on_device(const PackedTokens& batch, const DeviceOutputSet& wanted,
                                      StreamHandle stream = 0) = 0;
  virtual DeviceOutputs run_on_device(const PackedPatches& batch, const DeviceOutputSet& wanted,
                                      StreamHandle stream = 0) = 0;
  /// Counterpart of `run` of DevicePatches. `owner`: as below.
  virtual DeviceOutputs run_on_device(const DevicePatches& batch, const DeviceOutputSet& wanted,
                                      StreamHandle stream = 0,
                                      std::shared_ptr<const void> owner = nullptr) = 0;
  /// Runs a batch that lies on the device. The host sees only shapes, so the device checks the
  /// contents. If they are wrong, it clamps them, and `read` and `check` of the results throw.
  ///
  /// The arrays must be complete on `stream`, or on the session's own stream (`stream()`) if that
  /// is 0. `owner` keeps them alive; a later call releases it after they have been read. If it is
  /// null, the caller must keep them alive until then.
  virtual DeviceOutputs run_on_device(const DeviceTokens& batch, const DeviceOutputSet& wanted,
                                      StreamHandle stream = 0,
                                      std::shared_ptr<const void> owner = nullptr) = 0;
  /// Runs a batch that lies on the device and writes the outputs to host memory. It throws
  /// InvalidArgument itself if the device finds an error in the batch.
  virtual void run(const DeviceTokens& batch, const RunOutputs& outputs,
                   StreamHandle stream = 0) = 0;
  /// The session's stream, or 0 on the CPU. Work that is put on this stream runs before later runs.
  virtual StreamHandle stream() const = 0;
  /// Makes all later runs start after the work that `stream` has been asked for so far.
  virtual void wait_for(StreamHandle stream) = 0;

  /// Returns the milliseconds that the device takes from ids to the last hidden state, without
  /// copies to and from the host: `samples` numbers, each the mean of `launches` consecutive runs.
  virtual std::vector<double> time_encoder(const PackedTokens& batch, int samples,
                                           int launches) = 0;

  /// Runs the encoder on the batch and returns which kernels it took where there was a choice, and
  /// why: one line for each distinct choice, with the number of layers that made it. Empty on the
  /// CPU.
  virtual std::vector<std::string> explain(const PackedTokens& batch) = 0;

  virtual const MemoryPlan& memory_plan() const = 0;
  virtual const SessionOptions& options() const = 0;
  virtual const std::string& spec_json() const = 0;
  virtual int64_t hidden_size() const = 0;
  /// The number of columns of `embedding`.
  virtual int64_t embedding_size() const = 0;
  /// The length of the longest sequence that the model takes, in tokens.
  virtual int64_t max_seqlen() const = 0;
  /// The outputs that `run` can compute.
  virtual std::vector<OutputShape> outputs() const = 0;
};

/// Computes the memory plan of a model without loading it: no weights are read. Throws as
/// Session::load does.
PACKHORSE_API MemoryPlan plan_memory(const std::string& spec_json, const SessionOptions& options);

/// The names of the devices that this build and this machine can run on: "cpu", "cuda:0", ...
PACKHORSE_API std::vector<std::string> available_devices();

/// The version of the library, such as "0.1.0".
PACKHORSE_API const char* version();

}  // namespace packhorse
