// From hidden rows of a step to tokens: logits of the rows that somebody asked for, and what the
// settings of their requests choose from these.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "generation/step_runner.h"
#include "generation/token_counts.h"
#include "model/heads/lm.h"
#include "model/weights.h"
#include "ops/backend.h"
#include "ops/sample_args.h"

namespace packhorse {

/// Sizes of the stage.
struct ChooserShape {
  int64_t rows = 0;  // rows of logits at once
  int64_t vocab_size = 0;
  int64_t num_slots = 0;  // of sequences whose tokens are counted

  int64_t mask_words() const { return (vocab_size + 31) / 32; }
};

struct ChooserBuffers {
  char* input = nullptr;  // see InputLayout in token_chooser.cc
  LmScratch head;
  TensorView logits;              // [rows, vocab_size] float32
  int32_t* tokens = nullptr;      // [rows]
  float* logprobs = nullptr;      // [rows]
  int32_t* top_tokens = nullptr;  // [rows, kMostTopTokens]
  float* top_logprobs = nullptr;  // [rows, kMostTopTokens]
  void* workspace = nullptr;      // of sampling
  CountBuffers counts;
};

/// Takes the buffers from the arena, both when it counts and when it carves. They hold nothing from
/// one step to the next, but for `counts`, which the caller has taken where nothing overwrites it.
ChooserBuffers take_chooser_buffers(const ChooserShape& shape, const CountBuffers& counts,
                                    const LmWeights& weights, DType dtype, const Ops& ops,
                                    Arena& arena);

class TokenChooser {
 public:
  /// The arguments outlive the object.
  TokenChooser(const ChooserShape& shape, const LmSpec& spec, const LmWeights& weights,
               const ChooserBuffers& buffers, Backend& backend);

  /// Fills in the results of the step, whose rows of the last hidden state are `hidden`.
  void run(const Step& step, const TensorView& hidden);

 private:
  // One row of logits that is wanted, and where its results go.
  struct Row {
    int32_t hidden_row = 0;
    SamplingRow settings;
    const Sampling* sampling = nullptr;  // null: a row of a prompt
    std::span<const uint32_t> mask;
    bool wants_logprob = false;
    TokenLogprob* chosen = nullptr;
    float* target_logprob = nullptr;
    std::span<TokenLogprob> top;
  };

  void collect(const Step& step);
  /// `number`: of the rows that tokens of the sequence are chosen from.
  Row sampled_row(const StepSequence& sequence, int32_t hidden_row, int32_t number) const;
  void run(std::span<const Row> rows, const TensorView& hidden);
  SampleArgs upload(std::span<const Row> rows);
  void read(std::span<const Row> rows, const SampleArgs& args);

  const ChooserShape shape_;
  const LmSpec& spec_;
  const LmWeights& weights_;
  const ChooserBuffers& buffers_;
  DeviceContext& device_;
  Ops& ops_;
  TokenCounts counts_;
  const std::unique_ptr<UploadBuffer> uploads_;
  std::vector<Row> rows_;
  std::vector<int32_t> tokens_;  // results on the host
  std::vector<float> logprobs_;
  std::vector<int32_t> top_tokens_;
  std::vector<float> top_logprobs_;
};

}  // namespace packhorse
