#include "packhorse/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "core/format.h"
#include "model/encoder.h"
#include "model/spec.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace packhorse {
namespace {

/// Backends have kernels for batches whose longest sequence is no longer than this.
constexpr int64_t kShortSequence = 128;

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
    if (!limit) throw;
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
        layout_({options.max_tokens, options.max_sequences}),
        host_inputs_(static_cast<size_t>(layout_.size)),
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
    warm_up();
    record_buckets();
  }

  void run(const PackedTokens& tokens, const RunOutputs& outputs) override {
    check_process();
    check(tokens, limits_);
    if (outputs.pooled != nullptr && !spec_.pooler) {
      throw InvalidArgument("output 'pooled' was asked for, but this model has no pooler head");
    }
    const std::lock_guard lock(mutex_);
    const EncoderInputs inputs = upload(tokens);
    encode_batch(inputs);
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

  std::vector<double> time_encoder(const PackedTokens& tokens, int samples, int launches) override {
    check_process();
    check(tokens, limits_);
    const std::lock_guard lock(mutex_);
    const EncoderInputs inputs = upload(tokens);
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) {
      const double total = ops_->elapsed_ms([&] {
        for (int launch = 0; launch < launches; ++launch) encode_batch(inputs);
      });
      times.push_back(total / launches);
    }
    return times;
  }

  const MemoryPlan& memory_plan() const override { return plan_; }
  const SessionOptions& options() const override { return options_; }
  const std::string& spec_json() const override { return spec_json_; }
  int64_t hidden_size() const override { return spec_.hidden_size; }
  bool has_pooler() const override { return spec_.pooler.has_value(); }

 private:
  // fork() copies neither the worker threads nor the device context.
  void check_process() const {
    if (getpid() == process_) return;
    throw RuntimeError(concat("this session was loaded in process ", process_,
                              " and cannot run in process ", getpid(),
                              ", forked from it: load a session after the fork"));
  }

  // One token through everything: kernels made at first use are made now, not in a caller's run.
  void warm_up() {
    const std::array<int32_t, 1> ids = {0};
    const std::array<int32_t, 2> cu_seqlens = {0, 1};
    std::vector<float> rows(static_cast<size_t>(3 * spec_.hidden_size));
    float* const row = rows.data();
    run({.ids = ids, .cu_seqlens = cu_seqlens, .type_ids = {}, .position_ids = {}},
        {.hidden = row,
         .embedding = row + spec_.hidden_size,
         .pooled = spec_.pooler ? row + 2 * spec_.hidden_size : nullptr});
  }

  // Puts a batch together as InputLayout says and takes it to the device in one copy.
  EncoderInputs upload(const PackedTokens& tokens) {
    const int64_t num_tokens = tokens.num_tokens();
    int32_t* const host = host_inputs_.data();
    host[layout_.counts] = static_cast<int32_t>(num_tokens);
    host[layout_.counts + 1] = static_cast<int32_t>(tokens.num_sequences());
    int32_t* const offsets = host + layout_.cu_seqlens;
    std::copy(tokens.cu_seqlens.begin(), tokens.cu_seqlens.end(), offsets);
    // A recording sees max_sequences of them: those past the batch are empty.
    std::fill(offsets + tokens.cu_seqlens.size(), offsets + options_.max_sequences + 1,
              static_cast<int32_t>(num_tokens));
    int64_t end = layout_.ids;
    const auto copy = [&](std::span<const int32_t> values, int64_t at) {
      if (values.empty()) return;
      std::copy(values.begin(), values.end(), host + at);
      end = at + num_tokens;
    };
    copy(tokens.ids, layout_.ids);
    copy(tokens.type_ids, layout_.type_ids);
    copy(tokens.position_ids, layout_.position_ids);
    ops_->upload(buffers_.inputs, host, static_cast<size_t>(end) * sizeof(int32_t));

    EncoderInputs inputs = inputs_on_device(!tokens.type_ids.empty(), !tokens.position_ids.empty());
    inputs.batch.num_tokens = num_tokens;
    inputs.batch.num_sequences = tokens.num_sequences();
    inputs.batch.max_seqlen = tokens.max_seqlen();
    return inputs;
  }

  EncoderInputs inputs_on_device(bool has_type_ids, bool has_position_ids) const {
    EncoderInputs inputs;
    inputs.batch.cu_seqlens = buffers_.inputs + layout_.cu_seqlens;
    inputs.ids = buffers_.inputs + layout_.ids;
    if (has_type_ids) inputs.type_ids = buffers_.inputs + layout_.type_ids;
    if (has_position_ids) inputs.position_ids = buffers_.inputs + layout_.position_ids;
    return inputs;
  }

  void encode_batch(const EncoderInputs& inputs) {
    if (inputs.position_ids == nullptr) {
      const bool is_short = inputs.batch.max_seqlen <= kShortSequence;
      const auto& recordings = recordings_[is_short][inputs.type_ids != nullptr];
      const auto found = recordings.lower_bound(inputs.batch.num_tokens);
      if (found != recordings.end()) return found->second->launch();
    }
    encode(spec_, *weights_, inputs, buffers_, *ops_);
  }

  // Records the encoder for bucket after bucket of token counts: 16, 24, 32, 48, ... Each serves
  // every batch up to its size, because kernels read the exact counts on the device. Of a bucket
  // there is one for short sequences only, and one for any.
  void record_buckets() {
    for (int64_t step = 16; step < 2 * options_.max_tokens; step *= 2) {
      for (const int64_t size : {step, step / 2 * 3}) {
        const int64_t bucket = std::min(size, options_.max_tokens);
        const int64_t longest = std::min(bucket, spec_.max_seqlen);
        for (const auto& [is_short, has_type_ids] :
             {std::pair{true, false}, {true, true}, {false, false}, {false, true}}) {
          auto& recordings = recordings_[is_short][has_type_ids];
          if (recordings.contains(bucket) || (!is_short && longest <= kShortSequence)) continue;
          EncoderInputs inputs = inputs_on_device(has_type_ids, false);
          inputs.batch.num_tokens = bucket;
          inputs.batch.num_sequences = options_.max_sequences;
          inputs.batch.max_seqlen = is_short ? std::min(longest, kShortSequence) : longest;
          inputs.batch.counts = buffers_.inputs + layout_.counts;
          auto recording = ops_->record([&] { encode(spec_, *weights_, inputs, buffers_, *ops_); });
          if (recording == nullptr) return;
          recordings[bucket] = std::move(recording);
        }
      }
    }
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
  InputLayout layout_;
  std::vector<int32_t> host_inputs_;
  // [short sequences only][has type ids], by token count.
  std::map<int64_t, std::unique_ptr<Recording>> recordings_[2][2];
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
