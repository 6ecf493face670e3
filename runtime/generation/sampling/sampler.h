// From hidden rows of a step to tokens: logits of the rows that somebody asked for, and what the
// settings of their requests choose from these.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/math.h"
#include "generation/runner/step_inputs.h"
#include "generation/runner/step_runner.h"
#include "generation/sampling/token_counts.h"
#include "model/heads/lm.h"
#include "model/loading/weights.h"
#include "ops/args/sampling.h"
#include "ops/backend.h"

namespace packhorse {

/// Sizes of the stage.
struct SamplerShape {
  int64_t rows = 0;       // rows of logits at once, and most tokens that a step chooses
  int64_t num_slots = 0;  // slots of sequences
  int64_t vocab_size = 0;

  int64_t mask_words() const { return ceil_div(vocab_size, 32); }
};

/// Buffers that are written before the encoder runs, or read after the next step has begun, and so
/// share no bytes with the scratch of a step.
struct LastingBuffers {
  CountBuffers counts;
  int32_t* bias_tokens = nullptr;  // [rows * kMostBiases]
  float* biases = nullptr;         // [rows * kMostBiases]
  uint32_t* masks = nullptr;       // [rows, mask_words]
  char* results = nullptr;         // see ResultLayout in sampler.cc
};
LastingBuffers take_lasting_buffers(const SamplerShape& shape, Arena& arena);
/// Bytes of LastingBuffers::results.
size_t most_result_bytes(const SamplerShape& shape);

struct SamplerBuffers {
  LastingBuffers lasting;
  LmScratch head;
  TensorView logits;          // [rows, vocab_size or more] float32
  void* workspace = nullptr;  // scratch of sampling
};

/// Takes the buffers from the arena, both when it counts and when it carves. But for `lasting` they
/// hold nothing from one step to the next.
SamplerBuffers take_sampler_buffers(const SamplerShape& shape, const LastingBuffers& lasting,
                                    const LmWeights& weights, DType dtype, const Ops& ops,
                                    Arena& arena);

class Sampler {
 public:
  /// The arguments outlive the object. `ring`: of the results.
  Sampler(const SamplerShape& shape, const LmSpec& spec, const LmWeights& weights,
          const SamplerBuffers& buffers, StepInputs& inputs, HostDeviceRing& ring,
          Backend& backend);

  // A step: `begin`, `write_rows`, then `choose_all` or a graph of `choose`, then a fetch of
  // the results by the ring, and `launched`. `wait` is called for each step that was launched,
  // later.

  /// Looks at what the step wants.
  void begin(const Step& step);
  /// Writes the rows of the step that StepInputs is writing, and uploads what they have besides.
  void write_rows();
  /// True if `choose` does all that the step wants: each of its sequences has one token, which is
  /// row i of the batch for sequence i, and chooses one, and that is all.
  bool is_plain() const { return plain_; }
  bool wants_logprobs() const { return wants_logprobs_; }
  /// Chooses a token from each of the rows of a plain step, of which there are at most `most`. How
  /// many there are is read from `row_count`. Can be recorded.
  void choose(int64_t most, const int32_t* row_count, bool wants_logprobs,
              const TensorView& hidden);
  /// Does what any step wants. Its rows of the last hidden state are `hidden`.
  void choose_all(const TensorView& hidden);
  /// Number of bytes to be fetched: of the step, or of any plain one.
  size_t result_bytes() const { return bytes_of(last_); }
  size_t plain_result_bytes(bool wants_logprobs) const {
    return bytes_of({.num_rows = 1, .num_top = 0, .wants_logprobs = wants_logprobs});
  }
  /// The step is in flight.
  void launched();
  /// Waits for the oldest step in flight, and fills in its results. On an error none is in flight.
  void wait();

  /// The row that has chosen the token of each slot in the last step: [num_slots].
  std::span<const int32_t> row_of_slot() const { return row_of_slot_; }
  /// The tokens that the last step has chosen, by row, on the device.
  const int32_t* tokens() const;
  const TensorView& counts() const { return buffers_.lasting.counts.counts; }

 private:
  // Where the results of a row go.
  struct Target {
    bool wants_logprob = false;
    TokenLogprob* chosen = nullptr;
    float* target_logprob = nullptr;
    std::span<TokenLogprob> top;
  };
  // One row of logits that is wanted.
  struct Row {
    int32_t hidden_row = 0;
    int32_t slot = -1;                     // where it chooses a token
    const StepSampler* sampler = nullptr;  // while the step is launched; null: a row of a prompt
    int64_t draw = 0;                      // SamplingRow::draw
    int32_t forced = -1;                   // SamplingRow::forced
    std::span<const uint32_t> mask;        // SequenceSlice::target_mask of a prompt's row
    Target target;
  };
  // Rows that are computed together, and whose results come together.
  struct Chunk {
    size_t num_rows = 0;
    int32_t num_top = 0;
    bool wants_logprobs = false;
  };
  struct InFlight {
    Chunk chunk;
    std::vector<Row> rows;
  };

  /// `number`: of the rows that tokens of the sequence are chosen from.
  void add_sampled(const SequenceSlice& sequence, int32_t hidden_row, int32_t number);
  void add_targets(const SequenceSlice& sequence, int32_t first_row);
  /// Row that `add_restrictions` does not write.
  SamplingRow settings_of(const Row& row) const;
  /// Writes biases, boosts and the mask of a row behind those before, and where they lie.
  void add_restrictions(const Row& row, SamplingRow& settings);
  void add_target_mask(const Row& row, SamplingRow& settings);
  Chunk write(std::span<const Row> rows, const RowInputs& to);
  /// Computes the logits of rows of the head's input, which become those of `args`.
  void make_logits(const TensorView& input, SampleArgs& args);
  void compute(const Chunk& chunk, const TensorView& hidden);
  SampleArgs sample_args(const Chunk& chunk, int64_t num_rows) const;
  void download(const Chunk& chunk, std::span<const Row> rows);
  size_t bytes_of(const Chunk& chunk) const;
  void deliver(const Chunk& chunk, std::span<const Row> rows, const char* results) const;

  const SamplerShape shape_;
  const LmSpec& spec_;
  const LmWeights& weights_;
  const SamplerBuffers& buffers_;
  StepInputs& inputs_;
  DeviceContext& device_;
  Ops& ops_;
  TokenCounts counts_;
  const std::unique_ptr<UploadBuffer> bias_token_uploads_;
  const std::unique_ptr<UploadBuffer> bias_uploads_;
  const std::unique_ptr<UploadBuffer> mask_uploads_;
  HostDeviceRing& ring_;

  // Restrictions given to rows by `add_restrictions`; null where none has such a thing yet.
  int32_t* bias_tokens_ = nullptr;
  float* biases_ = nullptr;
  uint32_t* masks_ = nullptr;
  const uint32_t* target_mask_ = nullptr;  // the last mask of a prompt's rows
  int32_t num_biases_ = 0;
  int32_t num_masks_ = 0;
  RuleEffects effects_;  // effects of rules on the row that is written

  // The step that is being launched.
  std::vector<Row> rows_;   // those that choose a token first
  size_t num_sampled_ = 0;  // rows that choose a token
  bool plain_ = false;
  bool wants_logprobs_ = false;  // a row that chooses a token, as the next one
  bool wants_top_ = false;
  Chunk last_;  // what was computed last, whose results come with `wait`
  std::vector<int32_t> row_of_slot_;

  static_assert(StepRunner::kMostInFlight == HostDeviceRing::kSlots,
                "each step has a slot of its own");
  std::array<InFlight, StepRunner::kMostInFlight> steps_;
  size_t oldest_ = 0;
  size_t num_in_flight_ = 0;
  std::vector<char> downloaded_;  // results of rows that are waited for at a launch
};

}  // namespace packhorse
