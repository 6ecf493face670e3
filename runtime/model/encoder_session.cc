#include "model/encoder_session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "core/format.h"
#include "model/batch_inputs.h"
#include "model/encoder.h"
#include "model/encoder_outputs.h"
#include "model/output_slots.h"
#include "model/recordings.h"
#include "model/session_memory.h"
#include "model/shared_weights.h"
#include "model/weights.h"

namespace packhorse {
namespace {

// Equal lines become one that says how often it came, in the order of their first.
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
  EncoderSession(const std::string& spec_json, const WeightSource& source,
                 const SessionOptions& options)
      : options_(options),
        spec_json_(spec_json),
        spec_(parse_spec_for(options, spec_json)),
        layouts_(output_layouts(spec_, capacity_of(options))),
        ops_(make_session_ops(options)),
        io_(ops_->device_io()),
        limits_{.max_tokens = options.max_tokens,
                .max_sequences = options.max_sequences,
                .max_seqlen = spec_.max_seqlen,
                .vocab_size = spec_.stem.vocab_size,
                .type_vocab_size = std::max<int64_t>(1, spec_.stem.type_vocab_size),
                .num_positions = spec_.stem.num_positions - spec_.stem.position_offset,
                .max_predictions = spec_.heads.masked_lm ? options.max_predictions : 0},
        process_(getpid()) {
    ops_->check_dtype(options_.dtype);
    plan_ = count_memory(spec_, options_, *ops_);
    weights_ = load_shared_weights(spec_, spec_json_, options_, *ops_, plan_.weights, source);
    arena_memory_ = ops_->allocate(plan_.arena.bytes);
    Arena arena(arena_memory_->data(), plan_.arena);
    const SessionBuffers buffers = take_session_buffers(spec_, options_, *ops_, arena);
    buffers_ = buffers.encoder;
    inputs_ = std::make_unique<BatchInputs>(capacity_of(options), limits_, buffers_.inputs, *ops_);
    outputs_ = std::make_unique<EncoderOutputs>(spec_, *weights_, buffers_, layouts_, *ops_);
    slots_ = std::make_unique<OutputSlots>(buffers.slots, *ops_);
    if (io_ != nullptr) finding_ = io_->allocate_shared(sizeof(InputFinding));
    warm_up();
    recordings_.record(*ops_, options_.max_tokens, spec_.max_seqlen, spec_.stem.type_vocab_size > 0,
                       [this](const Recordings::Bounds& bounds) { encode_within(bounds); });
  }

  // What stays on the device is not waited for by its run.
  ~EncoderSession() override {
    try {
      ops_->synchronize();
    } catch (...) {
      // The device is lost, or this is a process forked from the one that had it.
    }
  }

  void run(const PackedTokens& tokens, const RunOutputs& outputs) override {
    check_run(outputs);
    check(tokens, limits_);
    const std::lock_guard lock(mutex_);
    const DownloadScope downloads(*ops_);
    outputs_->read(encode_batch(inputs_->upload(tokens)), outputs);
    ops_->synchronize();
  }

  void run(const DeviceTokens& tokens, const RunOutputs& outputs, StreamHandle stream) override {
    check_run(outputs);
    check_on_device(tokens);
    const std::lock_guard lock(mutex_);
    wait_for(stream);
    const uint32_t run = ++device_runs_;
    auto* finding = static_cast<InputFinding*>(finding_->data());
    const DownloadScope downloads(*ops_);
    outputs_->read(encode_batch(inputs_->load(tokens, run, finding)), outputs);
    ops_->synchronize();
    check_finding(*finding, run, tokens.num_tokens, limits_);
  }

  DeviceOutputs run_on_device(const PackedTokens& tokens, const DeviceOutputSet& wanted,
                              StreamHandle stream) override {
    check_run(wanted);
    check(tokens, limits_);
    device_io();
    const std::lock_guard lock(mutex_);
    const auto lease = slots_->lease(shared_from_this());
    wait_for(stream);
    return keep_outputs(encode_batch(inputs_->upload(tokens)), wanted, lease, stream, 0);
  }

  DeviceOutputs run_on_device(const DeviceTokens& tokens, const DeviceOutputSet& wanted,
                              StreamHandle stream, std::shared_ptr<const void> owner) override {
    check_run(wanted);
    check_on_device(tokens);
    // Let go of after the lock: an owner may be anything, another session's result too.
    std::vector<std::shared_ptr<const void>> read;
    const std::lock_guard lock(mutex_);
    while (!being_read_.empty() && being_read_.front().first->is_done()) {
      read.push_back(std::move(being_read_.front().second));
      being_read_.pop_front();
    }
    const auto lease = slots_->lease(shared_from_this());
    wait_for(stream);
    const uint32_t run = ++device_runs_;
    const EncoderInputs inputs = inputs_->load(tokens, run, lease->finding());
    if (owner != nullptr) {
      auto& [event, kept] = being_read_.emplace_back(io_->make_event(), std::move(owner));
      event->record(io_->stream());
    }
    return keep_outputs(encode_batch(inputs), wanted, lease, stream, run);
  }

  StreamHandle stream() const override { return io_ == nullptr ? 0 : io_->stream(); }

  void wait_for(StreamHandle stream) override {
    if (stream != 0) device_io().order(stream, io_->stream());
  }

  std::vector<double> time_encoder(const PackedTokens& tokens, int samples, int launches) override {
    check_run(DeviceOutputSet());
    check(tokens, limits_);
    const std::lock_guard lock(mutex_);
    const EncoderInputs inputs = inputs_->upload(tokens);
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) {
      const double total = ops_->elapsed_ms([&] {
        for (int launch = 0; launch < launches; ++launch) encode_batch(inputs);
      });
      times.push_back(total / launches);
    }
    return times;
  }

  std::vector<std::string> explain(const PackedTokens& tokens) override {
    check_run(DeviceOutputSet());
    check(tokens, limits_);
    const std::lock_guard lock(mutex_);
    const EncoderInputs inputs = inputs_->upload(tokens);
    const auto lines = ops_->explain([&] {
      // A recording chose by its bounds, not by the batch.
      const auto bounds = recordings_.bounds_of(bounds_of(inputs));
      if (inputs.position_ids == nullptr && bounds) {
        encode_within(*bounds);
      } else {
        encode(spec_, *weights_, inputs, buffers_, *ops_);
      }
    });
    ops_->synchronize();
    return count_lines(lines);
  }

  const MemoryPlan& memory_plan() const override { return plan_; }
  const SessionOptions& options() const override { return options_; }
  const std::string& spec_json() const override { return spec_json_; }
  int64_t hidden_size() const override { return spec_.hidden_size; }
  int64_t embedding_size() const override { return spec_.embedding_columns(); }
  int64_t max_seqlen() const override { return spec_.max_seqlen; }
  std::vector<OutputShape> outputs() const override {
    std::vector<OutputShape> shapes;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      if (!layouts_[i].exists()) continue;
      shapes.push_back(
          {kOutputNames[i], layouts_[i].per == OutputRows::kTokens, layouts_[i].columns});
    }
    return shapes;
  }

 private:
  class Array final : public DeviceArray {
   public:
    Array(std::shared_ptr<EncoderSession> session, std::shared_ptr<OutputLease> lease,
          const TensorView& view, StreamHandle stream, uint32_t run, int64_t num_tokens)
        : DeviceArray(session->options_.device, view, stream),
          session_(std::move(session)),
          lease_(std::move(lease)),
          run_(run),
          num_tokens_(num_tokens) {}

    void make_ready_on(StreamHandle stream) override {
      session_->check_process();
      lease_->make_ready_on(stream);
    }
    void read(float* to) override {
      session_->check_process();
      {
        const std::lock_guard lock(session_->mutex_);
        const DownloadScope downloads(*session_->ops_);
        session_->outputs_->read_back(view(), to);
        session_->ops_->synchronize();
      }
      check_finding(*lease_->finding(), run_, num_tokens_, session_->limits_);
    }
    void check() override {
      session_->check_process();
      lease_->wait();
      check_finding(*lease_->finding(), run_, num_tokens_, session_->limits_);
    }

   private:
    std::shared_ptr<EncoderSession> session_;
    std::shared_ptr<OutputLease> lease_;
    uint32_t run_;
    int64_t num_tokens_;
  };

  // fork() copies neither the worker threads nor the device context.
  void check_process() const {
    if (getpid() == process_) return;
    throw RuntimeError(concat("this session was loaded in process ", process_,
                              " and cannot run in process ", getpid(),
                              ", forked from it: load a session after the fork"));
  }

  // `wanted`: null pointers or false for outputs that are not.
  template <class Value>
  void check_run(const PerOutput<Value>& wanted) const {
    check_process();
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      if (wanted[i] && !layouts_[i].exists()) refuse_output(kOutputNames[i]);
    }
  }

  [[noreturn]] void refuse_output(const char* name) const {
    std::string known;
    for (const OutputShape& shape : outputs()) {
      known += concat(known.empty() ? "" : ", ", shape.name);
    }
    throw InvalidArgument(concat("output '", name, "' was asked for, but this model has: ", known));
  }

  DeviceIo& device_io() const {
    if (io_ != nullptr) return *io_;
    throw InvalidArgument(concat("this session runs on ", name_of(options_.device),
                                 ": batches and outputs are in host memory, without a stream"));
  }

  void check_on_device(const DeviceTokens& tokens) const {
    const DeviceIo& io = device_io();
    check_capacity(tokens.num_tokens, tokens.num_sequences, limits_);
    if (tokens.cu_seqlens == nullptr || tokens.num_sequences < 0) {
      throw InvalidArgument("cu_seqlens is empty; expected B + 1 offsets, at least [0]");
    }
    if (tokens.ids == nullptr && tokens.num_tokens > 0) throw InvalidArgument("ids are missing");
    const auto check_pointer = [&](const char* name, const int32_t* data) {
      if (data != nullptr) io.check_pointer(name, data);
    };
    check_prediction_rows(tokens.prediction_rows, tokens.num_tokens, limits_);
    check_pointer("cu_seqlens", tokens.cu_seqlens);
    if (tokens.num_tokens == 0) return;
    check_pointer("ids", tokens.ids);
    check_pointer("type_ids", tokens.type_ids);
    check_pointer("position_ids", tokens.position_ids);
  }

  // One token through everything: kernels made at first use are made now, not in a caller's run.
  void warm_up() {
    const std::array<int32_t, 1> ids = {0};
    const std::array<int32_t, 2> cu_seqlens = {0, 1};
    const bool predicts = layouts_.predictions.exists();
    DeviceOutputSet all;
    std::array<std::vector<float>, kOutputNames.size()> rows;
    RunOutputs outputs;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      all[i] = layouts_[i].exists();
      rows[i].resize(static_cast<size_t>(layouts_[i].columns));
      if (all[i]) outputs[i] = rows[i].data();
    }
    const std::span<const int32_t> row(ids.data(), predicts ? 1 : 0);
    run({.ids = ids,
         .cu_seqlens = cu_seqlens,
         .type_ids = {},
         .position_ids = {},
         .prediction_rows = row},
        outputs);
    if (io_ == nullptr) return;
    // What the run above has left is a batch on the device.
    const EncoderInputs left = inputs_->bounds(1, 1, false);
    const DeviceTokens tokens = {.ids = left.ids,
                                 .cu_seqlens = left.batch.cu_seqlens,
                                 .num_tokens = 1,
                                 .num_sequences = 1,
                                 .prediction_rows = row};
    const EncoderInputs loaded =
        inputs_->load(tokens, 0, static_cast<InputFinding*>(finding_->data()));
    outputs_->write(exact(loaded), inputs_->counts(), all, buffers_.outputs);
    ops_->synchronize();
  }

  // The host's numbers are those of the batch itself.
  static EncoderInputs exact(EncoderInputs inputs) {
    inputs.batch.counts = nullptr;
    return inputs;
  }

  Recordings::Bounds bounds_of(const EncoderInputs& inputs) const {
    const bool has_type_ids = inputs.type_ids != nullptr && spec_.stem.type_vocab_size > 0;
    return {inputs.batch.num_tokens, inputs.batch.max_seqlen, has_type_ids};
  }

  // The encoder on whatever batch the device holds, launched for any batch within the bounds.
  void encode_within(const Recordings::Bounds& bounds) {
    EncoderInputs inputs =
        inputs_->bounds(bounds.num_tokens, options_.max_sequences, bounds.has_type_ids);
    inputs.batch.max_seqlen = bounds.max_seqlen;
    encode(spec_, *weights_, inputs, buffers_, *ops_);
  }

  // Fills buffers_.hidden; returns the batch as the outputs see it.
  EncoderInputs encode_batch(const EncoderInputs& inputs) {
    if (inputs.position_ids != nullptr || !recordings_.launch(bounds_of(inputs))) {
      encode(spec_, *weights_, inputs, buffers_, *ops_);
    }
    return exact(inputs);
  }

  DeviceOutputs keep_outputs(const EncoderInputs& inputs, const DeviceOutputSet& wanted,
                             const std::shared_ptr<OutputLease>& lease, StreamHandle stream,
                             uint32_t run) {
    const OutputBuffers& to = lease->buffers();
    outputs_->write(inputs, inputs_->counts(), wanted, to);
    lease->complete();
    if (stream != 0) lease->make_ready_on(stream);
    DeviceOutputs results;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      if (!wanted[i]) continue;
      results[i] = std::make_shared<Array>(shared_from_this(), lease,
                                           to[i].first_rows(outputs_->rows_of(i, inputs)), stream,
                                           run, inputs.batch.num_tokens);
    }
    return results;
  }

  SessionOptions options_;
  std::string spec_json_;
  Spec spec_;
  PerOutput<OutputLayout> layouts_;
  std::unique_ptr<Ops> ops_;
  DeviceIo* io_;  // of ops_; null on the CPU
  MemoryPlan plan_;
  std::shared_ptr<const ModelWeights> weights_;
  std::unique_ptr<DeviceMemory> arena_memory_;
  EncoderBuffers buffers_;
  std::unique_ptr<BatchInputs> inputs_;
  std::unique_ptr<EncoderOutputs> outputs_;
  Recordings recordings_;
  PackedLimits limits_;
  std::unique_ptr<OutputSlots> slots_;
  std::unique_ptr<DeviceMemory> finding_;  // of runs whose outputs go to the host
  uint32_t device_runs_ = 0;
  /// Batches on the device, until it has read them.
  std::deque<std::pair<std::unique_ptr<DeviceEvent>, std::shared_ptr<const void>>> being_read_;
  std::mutex mutex_;  // one run at a time: the arena is the session's own
  pid_t process_;
};

}  // namespace

std::shared_ptr<Session> make_encoder_session(const std::string& spec_json,
                                              const WeightSource& source,
                                              const SessionOptions& options) {
  return std::make_shared<EncoderSession>(spec_json, source, options);
}

}  // namespace packhorse
