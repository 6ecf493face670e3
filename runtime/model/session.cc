#include "packhorse/session.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "core/format.h"
#include "model/encoder.h"
#include "model/spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace packhorse {
namespace {

void check_options(const SessionOptions& options) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1 || value > (int64_t{1} << 30)) {
      throw InvalidArgument(concat(name, " is ", value, ", expected 1 to 2^30"));
    }
  };
  positive("max_tokens", options.max_tokens);
  positive("max_sequences", options.max_sequences);
  if (options.threads < 0 || options.threads > 4096) {
    throw InvalidArgument(
        concat("threads is ", options.threads, ", expected 1 to 4096, or 0 for all cores"));
  }
}

/// Counts weights, then arena, under the session's memory limit.
MemoryPlan count_memory(const Spec& spec, const SessionOptions& options, Ops& ops) {
  MemoryPlan plan;
  const std::optional<size_t> limit = options.memory_limit;
  try {
    plan.weights = plan_weights(spec, options.dtype, ops, limit);
    Arena arena(limit ? std::optional<size_t>(*limit - plan.weights.bytes) : std::nullopt);
    take_buffers(spec, {options.max_tokens, options.max_sequences}, options.dtype, ops, arena);
    plan.arena = arena.plan();
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(concat(error.message(), " (memory_limit is ", *limit,
                             " bytes, of which the weights take ", plan.weights.bytes,
                             "; lower max_tokens or max_sequences, or raise memory_limit)"));
  }
  return plan;
}

/// Loaded weights that other sessions of the same device may use too.
class SharedWeights {
 public:
  std::shared_ptr<const ModelWeights> load(const Spec& spec, const std::string& spec_json,
                                           const SessionOptions& options, Ops& ops,
                                           const PlannedAllocation& plan,
                                           const WeightSource& source) {
    const std::string identity = source.identity();
    if (identity.empty()) return load_weights(spec, options.dtype, ops, plan, source);
    const std::string key = concat(name_of(options.device), '\n', name_of(options.dtype), '\n',
                                   identity, '\n', spec_json);
    // Held while loading, so that two sessions opened at once load once.
    const std::lock_guard lock(mutex_);
    std::erase_if(loaded_, [](const auto& entry) { return entry.second.expired(); });
    auto weights = loaded_[key].lock();
    if (weights == nullptr) {
      weights = load_weights(spec, options.dtype, ops, plan, source);
      loaded_[key] = weights;
    }
    return weights;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const ModelWeights>> loaded_;
};

SharedWeights& shared_weights() {
  static SharedWeights instance;
  return instance;
}

class EncoderSession final : public Session {
 public:
  EncoderSession(std::string spec_json, const WeightSource& source, const SessionOptions& options)
      : options_(options),
        spec_json_(std::move(spec_json)),
        spec_(parse_spec(spec_json_)),
        ops_(make_ops(options.device, {.threads = options.threads})),
        process_(getpid()) {
    ops_->check_dtype(options_.dtype);
    plan_ = count_memory(spec_, options_, *ops_);
    weights_ = shared_weights().load(spec_, spec_json_, options_, *ops_, plan_.weights, source);
    arena_memory_ = ops_->allocate(plan_.arena.bytes);
    Arena arena(arena_memory_->data(), plan_.arena);
    buffers_ = take_buffers(spec_, {options_.max_tokens, options_.max_sequences}, options_.dtype,
                            *ops_, arena);
    limits_ = {.max_tokens = options_.max_tokens,
               .max_sequences = options_.max_sequences,
               .max_seqlen = spec_.max_seqlen,
               .vocab_size = spec_.vocab_size,
               .type_vocab_size = std::max<int64_t>(1, spec_.type_vocab_size),
               .num_positions = spec_.num_positions - spec_.position_offset};
  }

  void run(const PackedTokens& tokens, const RunOutputs& outputs) override {
    // fork() copies neither the worker threads nor the device context.
    if (getpid() != process_) {
      throw RuntimeError(concat("this session was loaded in process ", process_,
                                " and cannot run in process ", getpid(),
                                ", forked from it: load a session after the fork"));
    }
    check(tokens, limits_);
    if (outputs.pooled != nullptr && !spec_.pooler) {
      throw InvalidArgument("output 'pooled' was asked for, but this model has no pooler head");
    }
    const std::lock_guard lock(mutex_);
    const EncoderInputs inputs = upload(tokens);
    encode(spec_, *weights_, inputs, buffers_, *ops_);
    read_back(buffers_.hidden.first_rows(tokens.num_tokens()), outputs.hidden);
    if (outputs.embedding != nullptr) {
      read_back(embed_sequences(spec_, inputs.batch, buffers_, *ops_), outputs.embedding);
    }
    if (outputs.pooled != nullptr) {
      read_back(pool_first_tokens(spec_, *weights_, inputs.batch, buffers_, *ops_), outputs.pooled);
    }
    ops_->synchronize();
    if (outputs.pooled != nullptr) clear_empty_sequences(tokens, outputs.pooled);
  }

  const MemoryPlan& memory_plan() const override { return plan_; }
  const SessionOptions& options() const override { return options_; }
  const std::string& spec_json() const override { return spec_json_; }
  int64_t hidden_size() const override { return spec_.hidden_size; }
  bool has_pooler() const override { return spec_.pooler.has_value(); }

 private:
  EncoderInputs upload(const PackedTokens& tokens) {
    const auto copy = [&](int32_t* to, std::span<const int32_t> from) {
      if (!from.empty()) ops_->upload(to, from.data(), from.size_bytes());
    };
    copy(buffers_.ids, tokens.ids);
    copy(buffers_.cu_seqlens, tokens.cu_seqlens);
    copy(buffers_.type_ids, tokens.type_ids);
    copy(buffers_.position_ids, tokens.position_ids);
    EncoderInputs inputs;
    inputs.batch.num_tokens = tokens.num_tokens();
    inputs.batch.num_sequences = tokens.num_sequences();
    inputs.batch.max_seqlen = tokens.max_seqlen();
    inputs.batch.cu_seqlens = buffers_.cu_seqlens;
    inputs.has_type_ids = !tokens.type_ids.empty();
    inputs.has_position_ids = !tokens.position_ids.empty();
    return inputs;
  }

  // Device rows to float32 on the host; nothing where the caller does not want them.
  void read_back(TensorView rows, float* to) {
    if (to == nullptr || rows.size() == 0) return;
    if (rows.dtype != DType::kFloat32) {
      const TensorView converted = buffers_.as_float32.first_rows(rows.rows());
      ops_->cast({.x = rows, .out = converted});
      rows = converted;
    }
    ops_->download(to, rows.data, static_cast<size_t>(rows.size()) * sizeof(float));
  }

  // The pooler of nothing is nothing, as the embedding of an empty sequence is zeros.
  void clear_empty_sequences(const PackedTokens& tokens, float* pooled) const {
    for (int64_t b = 0; b < tokens.num_sequences(); ++b) {
      const auto i = static_cast<size_t>(b);
      if (tokens.cu_seqlens[i] == tokens.cu_seqlens[i + 1]) {
        std::fill_n(pooled + b * spec_.hidden_size, spec_.hidden_size, 0.0f);
      }
    }
  }

  SessionOptions options_;
  std::string spec_json_;
  Spec spec_;
  std::unique_ptr<Ops> ops_;
  MemoryPlan plan_;
  std::shared_ptr<const ModelWeights> weights_;
  std::unique_ptr<DeviceMemory> arena_memory_;
  EncoderBuffers buffers_;
  PackedLimits limits_;
  std::mutex mutex_;  // one run at a time: the arena is the session's own
  pid_t process_;
};

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidArgument(concat("cannot read '", path.string(), "'"));
  return text.str();
}

}  // namespace

std::shared_ptr<Session> Session::load(const std::string& folder, const SessionOptions& options) {
  const std::filesystem::path path(folder);
  const std::string spec_json = read_text(path / "packhorse.json");
  const auto weights = open_safetensors({(path / "model.safetensors").string()});
  return load(spec_json, *weights, options);
}

std::shared_ptr<Session> Session::load(const std::string& spec_json, const WeightSource& weights,
                                       const SessionOptions& options) {
  check_options(options);
  return std::make_shared<EncoderSession>(spec_json, weights, options);
}

MemoryPlan plan_memory(const std::string& spec_json, const SessionOptions& options) {
  check_options(options);
  const Spec spec = parse_spec(spec_json);
  const auto ops = make_ops(options.device, {.threads = options.threads});
  ops->check_dtype(options.dtype);
  return count_memory(spec, options, *ops);
}

std::vector<std::string> available_devices() { return list_devices(); }

const char* version() { return PACKHORSE_VERSION; }

}  // namespace packhorse
