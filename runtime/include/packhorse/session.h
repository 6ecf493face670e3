// The public C++ API: load a model once, run packed batches on it from any thread.
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
#include "packhorse/packed_tokens.h"
#include "packhorse/types.h"
#include "packhorse/weight_source.h"

namespace packhorse {

struct SessionOptions {
  Device device;
  DType dtype = DType::kFloat32;
  int64_t max_tokens = 8192;    // T of the largest batch
  int64_t max_sequences = 256;  // B of the largest batch
  int threads = 0;              // CPU threads, the caller's own among them; 0: all cores it may use
  bool pin_threads = false;     // each CPU worker stays on one core of the affinity mask
  std::optional<size_t> memory_limit;  // bytes, weights + arena; exceeded: OutOfMemory at load
  int output_slots = 2;  // results that may stay on the device at once; none are planned on the CPU
  /// Rows of the largest PackedTokens::prediction_rows. 0: what only `predictions` needs of a model
  /// is not loaded.
  int64_t max_predictions = 0;
  AttentionAlgorithm attention_algorithm = AttentionAlgorithm::kAuto;  // kAuto alone on the CPU
};

/// Names of the members of PerOutput, in order.
inline constexpr std::array<const char*, 8> kOutputNames = {
    "hidden", "embedding", "pooled", "logits", "token_weights", "vectors", "sparse", "predictions"};

/// Something for each output that a model may have. T = tokens, B = sequences of the batch; what
/// the spec must have is in docs/spec.md.
template <class Value>
struct PerOutput {
  Value hidden{};         // [T, hidden_size] last hidden state
  Value embedding{};      // [B, embedding columns] pooled and normalised as the spec says
  Value pooled{};         // [B, hidden_size] the pooler head
  Value logits{};         // [B or T, num_labels] the classifier
  Value token_weights{};  // [T, 1] how much each token counts in lexical matching
  Value vectors{};        // [T, size] of each token, for late interaction
  Value sparse{};         // [B, vocab_size] log(1 + max(prediction, 0)), largest or sum of tokens
  Value predictions{};    // [prediction_rows, vocab_size] logits of the masked language model

  Value& operator[](size_t i) {
    const std::array<Value*, kOutputNames.size()> values = {
        &hidden, &embedding, &pooled, &logits, &token_weights, &vectors, &sparse, &predictions};
    return *values[i];
  }
  const Value& operator[](size_t i) const { return const_cast<PerOutput&>(*this)[i]; }
};

/// Where a run writes, in host memory owned by the caller. A null pointer: not wanted, not
/// computed.
using RunOutputs = PerOutput<float*>;

/// Which outputs stay on the device.
using DeviceOutputSet = PerOutput<bool>;

/// Null where not wanted. `hidden` and `pooled` are of the session's dtype, the others are float32.
/// Together they lease one of `output_slots`, until the last is gone; they keep the session alive.
using DeviceOutputs = PerOutput<std::shared_ptr<DeviceArray>>;

/// One output that a model has: [T, columns] where it is per token, else [B, columns]; of
/// `predictions` [prediction_rows, columns].
struct OutputShape {
  std::string name;  // of kOutputNames
  bool per_token = false;
  int64_t columns = 0;
};

/// A loaded model. Movable between threads; `run` may be called from many threads at once (calls
/// queue). After any error the session stays usable.
class PACKHORSE_API Session {
 public:
  /// Loads a converted folder: packhorse.json (the spec) and model.safetensors.
  static std::shared_ptr<Session> load(const std::string& folder, const SessionOptions& options);
  /// Loads from a spec (JSON text, docs/spec.md) and weights under the names of docs/weights.md.
  static std::shared_ptr<Session> load(const std::string& spec_json, const WeightSource& weights,
                                       const SessionOptions& options);
  virtual ~Session() = default;

  /// Runs one batch. Throws InvalidArgument (batch not acceptable), RuntimeError.
  virtual void run(const PackedTokens& batch, const RunOutputs& outputs) = 0;

  /// Results that stay on the device; the host does not wait. The run comes after what `stream` has
  /// been asked so far, and what `stream` is asked from now on comes after the run. Throws as `run`
  /// does, and RuntimeError where no output slot is free. On the CPU: InvalidArgument.
  virtual DeviceOutputs run_on_device(const PackedTokens& batch, const DeviceOutputSet& wanted,
                                      StreamHandle stream = 0) = 0;
  /// Runs a batch that lies on the device, which checks it there: the host sees shapes alone. A
  /// batch that is not acceptable is brought into range, and reported by `read` and `check` of its
  /// results. The arrays must be complete on `stream`, or on the session's own, `this->stream()`.
  /// `owner` keeps them alive, and is let go by a later call when they have been read; null: the
  /// caller keeps them until then.
  virtual DeviceOutputs run_on_device(const DeviceTokens& batch, const DeviceOutputSet& wanted,
                                      StreamHandle stream = 0,
                                      std::shared_ptr<const void> owner = nullptr) = 0;
  /// The same with outputs in host memory: throws what is wrong with the batch itself.
  virtual void run(const DeviceTokens& batch, const RunOutputs& outputs,
                   StreamHandle stream = 0) = 0;
  /// The session's stream; 0 on the CPU. Work may be asked to precede the session's on it.
  virtual StreamHandle stream() const = 0;
  /// What the session is asked from now on runs after what `stream` has been asked so far.
  virtual void wait_for(StreamHandle stream) = 0;

  /// Milliseconds on the device from ids to the last hidden state: one number for each of
  /// `samples`, each the mean of `launches` runs asked for back to back. Without copies to and from
  /// the host.
  virtual std::vector<double> time_encoder(const PackedTokens& batch, int samples,
                                           int launches) = 0;

  /// Runs the encoder on the batch, and says which kernels it took where there was a choice, and
  /// what decided: a line for each distinct choice, with how many layers made it. Empty on the CPU.
  virtual std::vector<std::string> explain(const PackedTokens& batch) = 0;

  virtual const MemoryPlan& memory_plan() const = 0;
  virtual const SessionOptions& options() const = 0;
  virtual const std::string& spec_json() const = 0;
  virtual int64_t hidden_size() const = 0;
  /// Columns of `embedding`.
  virtual int64_t embedding_size() const = 0;
  /// Tokens of the longest sequence that the model takes.
  virtual int64_t max_seqlen() const = 0;
  /// What may be asked of `run`.
  virtual std::vector<OutputShape> outputs() const = 0;
};

/// The plan of a model that need not be loaded: no weights are read.
PACKHORSE_API MemoryPlan plan_memory(const std::string& spec_json, const SessionOptions& options);

/// "cpu", "cuda:0", ...: what this build and this machine can run on.
PACKHORSE_API std::vector<std::string> available_devices();

/// Version of the library, "0.1.0".
PACKHORSE_API const char* version();

}  // namespace packhorse
