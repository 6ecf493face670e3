#include "session/encoder_session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/interrupt.h"
#include "model/transformer.h"
#include "session/graph_cache.h"
#include "session/loaded_model.h"
#include "session/output_slots.h"
#include "session/outputs.h"
#include "session/request_validator.h"
#include "session/session_buffers.h"
#include "session/staging.h"

namespace packhorse {
namespace {

// Merges equal lines into one that says how often it came, in the order of first occurrence.
std::vector<std::string> count_lines(const std::vector<std::string>& lines) {
  std::vector<std::string> result;
  for (auto line = lines.begin(); line != lines.end(); ++line) {
    if (std::find(lines.begin(), line, *line) != line) continue;
    result.push_back(concat(*line, ", ", std::count(line, lines.end(), *line), " x"));
  }
  return result;
}

class EncoderSession final : public Session, public std::enable_shared_from_this<EncoderSession> {
 public:
  explicit EncoderSession(LoadedModel model)
      : model_(std::move(model)),
        validator_(model_),
        arena_memory_(device().allocate(model_.plan.arena.bytes)),
        buffers_(carve()),
        staging_(capacity_of(model_.options), model_.limits, buffers_.inputs, buffers_.features,
                 model_.patch_limits.prefix, device()),
        outputs_(model_, buffers_.model),
        slots_(buffers_.slots, device().io()) {
    if (DeviceIo* io = device().io()) finding_ = io->allocate_shared(sizeof(InputFinding));
    warm_up();
    graphs_.record(device(), model_.limits.max_tokens, model_.limits.max_seqlen,
                   model_.spec.stack().stem.type_vocab_size > 0,
                   [this](const GraphBounds& bounds, bool has_type_ids) {
                     encode_within(bounds, has_type_ids);
                   });
  }

  // A run whose results stay on the device does not wait for them, so its work may still be going
  // on.
  ~EncoderSession() override {
    try {
      device().synchronize();
    } catch (...) {
      // The device failed, or this process was forked from the one that opened it. There is nothing
      // left to wait for.
    }
  }

  void run(const PackedTokens& tokens, const RunOutputs& outputs) override {
    validator_.check(tokens, outputs);
    const auto turn = take_turn();
    const DownloadScope downloads(device());
    outputs_.read(encode_batch(staging_.upload(tokens, true)), outputs);
    device().synchronize();
  }

  void run(const PackedPatches& patches, const RunOutputs& outputs) override {
    validator_.check(patches, outputs);
    const auto turn = take_turn();
    const DownloadScope downloads(device());
    outputs_.read(encode_batch(staging_.upload(patches, true)), outputs);
    device().synchronize();
  }

  void run(const DevicePatches& patches, const RunOutputs& outputs, StreamHandle stream) override {
    validator_.check(patches, outputs);
    const auto turn = take_turn();
    wait_for(stream);
    const DownloadScope downloads(device());
    outputs_.read(encode_batch(staging_.load(patches)), outputs);
    device().synchronize();
  }

  void run(const DeviceTokens& tokens, const RunOutputs& outputs, StreamHandle stream) override {
    validator_.check(tokens, outputs);
    const auto turn = take_turn();
    wait_for(stream);
    const uint32_t run = ++device_runs_;
    auto* finding = static_cast<InputFinding*>(finding_->data());
    const DownloadScope downloads(device());
    outputs_.read(encode_batch(staging_.load(tokens, run, finding)), outputs);
    device().synchronize();
    check_finding(*finding, run, tokens.num_tokens, model_.limits);
  }

  DeviceOutputs run_on_device(const PackedTokens& tokens, const DeviceOutputSet& wanted,
                              StreamHandle stream) override {
    return run_host_batch_on_device(tokens, wanted, stream);
  }

  DeviceOutputs run_on_device(const PackedPatches& patches, const DeviceOutputSet& wanted,
                              StreamHandle stream) override {
    return run_host_batch_on_device(patches, wanted, stream);
  }

  DeviceOutputs run_on_device(const DevicePatches& patches, const DeviceOutputSet& wanted,
                              StreamHandle stream, std::shared_ptr<const void> owner) override {
    validator_.check(patches, wanted);
    std::vector<std::shared_ptr<const void>> read;  // before the lock: see `take_owners`
    const auto turn = take_turn();
    take_owners(read);
    const auto lease = slots_.lease(shared_from_this());
    wait_for(stream);
    const TokenBatch inputs = staging_.load(patches);
    keep_owner(std::move(owner));
    return keep_outputs(encode_batch(inputs), wanted, lease, stream, 0);
  }

  DeviceOutputs run_on_device(const DeviceTokens& tokens, const DeviceOutputSet& wanted,
                              StreamHandle stream, std::shared_ptr<const void> owner) override {
    validator_.check(tokens, wanted);
    std::vector<std::shared_ptr<const void>> read;  // before the lock: see `take_owners`
    const auto turn = take_turn();
    take_owners(read);
    const auto lease = slots_.lease(shared_from_this());
    wait_for(stream);
    const uint32_t run = ++device_runs_;
    const TokenBatch inputs = staging_.load(tokens, run, lease->finding());
    keep_owner(std::move(owner));
    return keep_outputs(encode_batch(inputs), wanted, lease, stream, run);
  }

  StreamHandle stream() const override {
    DeviceIo* io = device().io();
    return io == nullptr ? 0 : io->stream();
  }

  void wait_for(StreamHandle stream) override {
    if (stream != 0) validator_.io().order(stream, validator_.io().stream());
  }

  std::vector<double> time_encoder(const PackedTokens& tokens, int samples, int launches) override {
    validator_.check(tokens, DeviceOutputSet());
    const auto turn = take_turn();
    const TokenBatch batch = staging_.upload(tokens, false);
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) {
      const double total = device().elapsed_ms([&] {
        for (int launch = 0; launch < launches; ++launch) encode_batch(batch);
      });
      times.push_back(total / launches);
    }
    return times;
  }

  std::vector<std::string> explain(const PackedTokens& tokens) override {
    validator_.check(tokens, DeviceOutputSet());
    const auto turn = take_turn();
    const TokenBatch batch = staging_.upload(tokens, false);
    const auto lines = model_.backend.ops->explain([&] {
      // Kernels in a graph were chosen for its bounds, not for the batch, so explain those.
      const auto bounds = graphs_.bounds_of(bounds_of(batch), has_type_ids(batch));
      if (batch.position_ids == nullptr && bounds) {
        encode_within(*bounds, has_type_ids(batch));
      } else {
        encode(batch);
      }
    });
    device().synchronize();
    return count_lines(lines);
  }

  const MemoryPlan& memory_plan() const override { return model_.plan; }
  const SessionOptions& options() const override { return model_.options; }
  const std::string& spec_json() const override { return model_.spec_json; }
  int64_t hidden_size() const override { return model_.spec.stack().hidden_size; }
  int64_t embedding_size() const override { return model_.spec.embedding_columns(); }
  int64_t max_seqlen() const override { return model_.spec.max_seqlen; }
  std::vector<OutputShape> outputs() const override {
    std::vector<OutputShape> shapes;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      const OutputLayout& layout = model_.layouts[i];
      if (!layout.exists()) continue;
      shapes.push_back({kOutputNames[i], layout.per == OutputRows::kTokens, layout.columns});
    }
    return shapes;
  }

 private:
  class Array final : public DeviceArray {
   public:
    Array(std::shared_ptr<EncoderSession> session, std::shared_ptr<OutputLease> lease,
          const TensorView& view, StreamHandle stream, uint32_t run, int64_t num_tokens)
        : DeviceArray(session->model_.options.device, view, stream),
          session_(std::move(session)),
          lease_(std::move(lease)),
          run_(run),
          num_tokens_(num_tokens) {}

    void make_ready_on(StreamHandle stream) override {
      session_->validator_.check_process();
      lease_->make_ready_on(stream);
    }
    void read(float* to) override {
      session_->validator_.check_process();
      {
        const auto turn = session_->take_turn();
        const DownloadScope downloads(session_->device());
        session_->outputs_.read_back(view(), to);
        session_->device().synchronize();
      }
      check_finding(*lease_->finding(), run_, num_tokens_, session_->model_.limits);
    }
    void check() override {
      session_->validator_.check_process();
      lease_->wait();
      check_finding(*lease_->finding(), run_, num_tokens_, session_->model_.limits);
    }

   private:
    std::shared_ptr<EncoderSession> session_;
    std::shared_ptr<OutputLease> lease_;
    uint32_t run_;
    int64_t num_tokens_;
  };

  DeviceContext& device() const { return *model_.backend.device; }

  template <class Batch>
  DeviceOutputs run_host_batch_on_device(const Batch& batch, const DeviceOutputSet& wanted,
                                         StreamHandle stream) {
    validator_.check(batch, wanted);
    validator_.io();
    const auto turn = take_turn();
    const auto lease = slots_.lease(shared_from_this());
    wait_for(stream);
    // This returns before the device has read the batch, which so must have been copied.
    return keep_outputs(encode_batch(staging_.upload(batch, false)), wanted, lease, stream, 0);
  }

  // Moves the owners of batches that the device has read to `read`. The caller holds the lock, and
  // releases them after it: that may run any code, such as that of another session's result.
  void take_owners(std::vector<std::shared_ptr<const void>>& read) {
    while (!being_read_.empty() && being_read_.front().first->is_done()) {
      read.push_back(std::move(being_read_.front().second));
      being_read_.pop_front();
    }
  }

  // Keeps the owner of a batch until the stream has done what it was asked for so far.
  void keep_owner(std::shared_ptr<const void> owner) {
    if (owner == nullptr) return;
    auto& [event, kept] = being_read_.emplace_back(validator_.io().make_event(), std::move(owner));
    event->record(validator_.io().stream());
  }

  // Waits for the turn, since one run goes at a time. A caller that waits may be interrupted, and
  // looks for that now and then.
  std::unique_lock<std::timed_mutex> take_turn() {
    std::unique_lock turn(mutex_, std::try_to_lock);
    while (!turn.owns_lock() && !turn.try_lock_for(std::chrono::milliseconds(50))) {
      check_interrupt();
    }
    return turn;
  }

  SessionBuffers carve() {
    Arena arena(arena_memory_->data(), model_.plan.arena);
    return take_session_buffers(model_.spec, *model_.weights, model_.options, model_.backend,
                                arena);
  }

  // Runs one token through everything, so that kernels which are created at first use are created
  // now rather than in a caller's run.
  void warm_up() {
    // A token that takes a given row would need one.
    const std::array<int32_t, 1> ids = {model_.limits.feature_id == 0 ? 1 : 0};
    const std::array<int32_t, 2> cu_seqlens = {0, 1};
    const bool predicts = model_.layouts.predictions.exists();
    DeviceOutputSet all;
    std::array<std::vector<float>, kOutputNames.size()> rows;
    RunOutputs outputs;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      all[i] = model_.layouts[i].exists();
      rows[i].resize(static_cast<size_t>(model_.layouts[i].columns));
      if (all[i]) outputs[i] = rows[i].data();
    }
    if (takes_patches(model_.spec)) {
      const std::vector<float> patch(static_cast<size_t>(model_.patch_limits.columns));
      const std::array<int32_t, 2> grid = {1, 1};
      for (size_t i = 0; i < kOutputNames.size(); ++i) {
        if (model_.layouts[i].per != OutputRows::kTokens) continue;
        rows[i].resize(rows[i].size() * static_cast<size_t>(model_.patch_limits.prefix + 1));
        if (all[i]) outputs[i] = rows[i].data();
      }
      return run({.features = patch, .columns = model_.patch_limits.columns, .grids = grid},
                 outputs);
    }
    const std::span<const int32_t> row(ids.data(), predicts ? 1 : 0);
    run({.ids = ids,
         .cu_seqlens = cu_seqlens,
         .type_ids = {},
         .position_ids = {},
         .prediction_rows = row},
        outputs);
    if (device().io() == nullptr) return;
    // The run above left its batch on the device; use it as a batch on the device.
    const TokenBatch left = staging_.bounds(1, 1, false);
    const DeviceTokens tokens = {.ids = left.ids,
                                 .cu_seqlens = left.batch.cu_seqlens,
                                 .num_tokens = 1,
                                 .num_sequences = 1,
                                 .prediction_rows = row};
    const TokenBatch loaded =
        staging_.load(tokens, 0, static_cast<InputFinding*>(finding_->data()));
    const OutputBuffers& to =
        buffers_.slots.empty() ? buffers_.model.heads.outputs : buffers_.slots.front();
    outputs_.write(exact(loaded), staging_.counts(), all, to);
    device().synchronize();
  }

  // The batch with its exact sizes in host memory, so that kernels need not read them on the
  // device.
  static TokenBatch exact(TokenBatch tokens) {
    tokens.batch.counts = nullptr;
    return tokens;
  }

  void encode(const TokenBatch& tokens) {
    // On the CPU a run can be interrupted between layers. Other devices only queue the layers, so
    // checking there would be of no use.
    void (*const before_layer)() = device().io() == nullptr ? &check_interrupt : nullptr;
    OwnKeys keys;
    Transformer(model_.spec, *model_.weights, buffers_.model.stem, buffers_.model.layers,
                *model_.backend.ops)
        .run(tokens, keys, before_layer);
  }

  // Encodes whatever batch the device holds, with launches that serve any batch within the bounds.
  void encode_within(const GraphBounds& bounds, bool has_type_ids) {
    TokenBatch tokens =
        takes_patches(model_.spec)
            ? staging_.patch_bounds(bounds.num_tokens)
            : staging_.bounds(bounds.num_tokens, model_.limits.max_sequences, has_type_ids);
    tokens.batch.max_seqlen = bounds.max_seqlen;
    tokens.batch.min_seqlen = bounds.min_seqlen;
    encode(tokens);
  }

  static GraphBounds bounds_of(const TokenBatch& tokens) {
    return {tokens.batch.num_tokens, tokens.batch.max_seqlen, tokens.batch.min_seqlen};
  }
  bool has_type_ids(const TokenBatch& tokens) const {
    return tokens.type_ids != nullptr && model_.spec.stack().stem.type_vocab_size > 0;
  }

  // Computes the last hidden state. Returns the batch with exact sizes for the heads.
  TokenBatch encode_batch(const TokenBatch& tokens) {
    if (tokens.position_ids != nullptr ||
        !graphs_.launch(bounds_of(tokens), has_type_ids(tokens))) {
      encode(tokens);
    }
    return exact(tokens);
  }

  DeviceOutputs keep_outputs(const TokenBatch& inputs, const DeviceOutputSet& wanted,
                             const std::shared_ptr<OutputLease>& lease, StreamHandle stream,
                             uint32_t run) {
    const OutputBuffers& to = lease->buffers();
    outputs_.write(inputs, staging_.counts(), wanted, to);
    lease->complete();
    if (stream != 0) lease->make_ready_on(stream);
    DeviceOutputs results;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      if (!wanted[i]) continue;
      results[i] = std::make_shared<Array>(shared_from_this(), lease,
                                           to[i].first_rows(model_.layouts[i].rows(inputs)), stream,
                                           run, inputs.batch.num_tokens);
    }
    return results;
  }

  const LoadedModel model_;
  const RequestValidator validator_;
  const std::unique_ptr<DeviceMemory> arena_memory_;
  const SessionBuffers buffers_;
  Staging staging_;
  SessionOutputs outputs_;
  GraphCache graphs_;
  OutputSlots slots_;
  std::unique_ptr<DeviceMemory> finding_;  // for runs whose outputs go to host memory
  uint32_t device_runs_ = 0;
  /// Owners of input batches on the device, each kept until the device has read the batch.
  std::deque<std::pair<std::unique_ptr<DeviceEvent>, std::shared_ptr<const void>>> being_read_;
  std::timed_mutex mutex_;  // allows one run at a time, because all runs use one arena
};

// Refuses by name what an encoder session cannot compute.
void check_spec(const Spec& spec) {
  if (spec.source() != nullptr) {
    throw InvalidArgument(
        "this model has an encoder and a decoder: it generates, and gives no other outputs");
  }
  const StackSpec& stack = spec.stack();
  for (const LayerSpec& layer : stack.layers) {
    if (layer.attention().soft_cap == 0) continue;
    throw InvalidArgument(concat("spec: 'attention.soft_cap' is ", layer.attention().soft_cap,
                                 ": scores are capped over pages of a cache alone"));
  }
}

LoadedModel plan_model(const std::string& spec_json, const SessionOptions& options) {
  LoadedModel model = open_model(spec_json, options);
  check_spec(model.spec);
  count_memory(model, [&](const ModelWeights& weights, Arena& arena) {
    take_session_buffers(model.spec, weights, options, model.backend, arena);
  });
  return model;
}

}  // namespace

LoadedModel load_encoder(const std::string& spec_json, const WeightSource& source,
                         const SessionOptions& options) {
  LoadedModel model = plan_model(spec_json, options);
  load_weights(model, source);
  return model;
}

std::shared_ptr<Session> make_encoder_session(const std::string& spec_json,
                                              const WeightSource& source,
                                              const SessionOptions& options) {
  return std::make_shared<EncoderSession>(load_encoder(spec_json, source, options));
}

MemoryPlan plan_encoder_session(const std::string& spec_json, const SessionOptions& options) {
  return plan_model(spec_json, options).plan;
}

}  // namespace packhorse
