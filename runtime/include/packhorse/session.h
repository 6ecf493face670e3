// The public C++ API: load a model once, run packed batches on it from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  int64_t max_tokens = 8192;           // T of the largest batch
  int64_t max_sequences = 256;         // B of the largest batch
  int threads = 0;                     // CPU worker threads; 0: all cores this process may use
  std::optional<size_t> memory_limit;  // bytes, weights + arena; exceeded: OutOfMemory at load
};

/// Where a run writes, in host memory owned by the caller. A null pointer: not wanted, not
/// computed.
struct RunOutputs {
  float* hidden = nullptr;     // [T, hidden_size] last hidden state
  float* embedding = nullptr;  // [B, hidden_size] pooled and normalised as the spec says
  float* pooled = nullptr;     // [B, hidden_size] the pooler head; the spec must have one
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

  /// Milliseconds on the device from ids to the last hidden state: one number for each of
  /// `samples`, each the mean of `launches` runs asked for back to back. Without copies to and from
  /// the host.
  virtual std::vector<double> time_encoder(const PackedTokens& batch, int samples,
                                           int launches) = 0;

  virtual const MemoryPlan& memory_plan() const = 0;
  virtual const SessionOptions& options() const = 0;
  virtual const std::string& spec_json() const = 0;
  virtual int64_t hidden_size() const = 0;
  virtual bool has_pooler() const = 0;
};

/// The plan of a model that need not be loaded: no weights are read.
PACKHORSE_API MemoryPlan plan_memory(const std::string& spec_json, const SessionOptions& options);

/// "cpu", "cuda:0", ...: what this build and this machine can run on.
PACKHORSE_API std::vector<std::string> available_devices();

/// Version of the library, "0.1.0".
PACKHORSE_API const char* version();

}  // namespace packhorse
