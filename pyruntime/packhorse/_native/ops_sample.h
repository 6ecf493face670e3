// The operator that chooses tokens, as Python calls it: arrays on the host alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "packhorse/_native/ops_call.h"

namespace packhorse {

using LongArray = Array<uint64_t>;

/// Settings of n rows, a column for each, and what rows share.
struct SampleInput {
  FloatArray logits;               // [n, vocab_size]
  FloatArray floats;               // [n, 6] temperature, top_p, min_p and the three penalties
  IntArray ints;                   // [n, 3] top_k, of_beam, flat
  LongArray draws;                 // [n, 3] seed, stream, draw
  IntArray bias_ends;              // [n, 2] where each row's biases and its boosts end
  IntArray bias_tokens;            // [num_biases]: of each row its biases, then its boosts
  FloatArray biases;               // [num_biases]
  std::optional<IntArray> masks;   // [n, ceil(vocab_size / 32)]
  std::optional<IntArray> counts;  // [n, vocab_size]
  int num_top = 0;
};

/// tokens [n], logprobs [n], top_tokens [n, num_top], top_logprobs [n, num_top]
inline py::tuple sample(Call& call, Ops& ops, const SampleInput& input) {
  const int64_t rows = input.logits.shape(0);
  const int64_t vocab_size = input.logits.shape(1);
  std::vector<SamplingRow> settings(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    SamplingRow& row = settings[static_cast<size_t>(i)];
    row.temperature = input.floats.at(i, 0);
    row.top_p = input.floats.at(i, 1);
    row.min_p = input.floats.at(i, 2);
    row.repetition_penalty = input.floats.at(i, 3);
    row.presence_penalty = input.floats.at(i, 4);
    row.frequency_penalty = input.floats.at(i, 5);
    row.top_k = input.ints.at(i, 0);
    row.of_beam = input.ints.at(i, 1) != 0;
    row.flat = input.ints.at(i, 2) != 0;
    row.seed = input.draws.at(i, 0);
    row.stream = input.draws.at(i, 1);
    row.draw = input.draws.at(i, 2);
    row.bias_begin = i == 0 ? 0 : input.bias_ends.at(i - 1, 1);
    row.bias_end = input.bias_ends.at(i, 0);
    row.boost_end = input.bias_ends.at(i, 1);
    if (input.masks) row.mask = static_cast<int32_t>(i);
    if (input.counts) row.counts = static_cast<int32_t>(i);
  }
  SampleArgs args;
  args.logits = call.matrix(rows, vocab_size, DType::kFloat32);
  call.upload(args.logits.data, input.logits);
  args.rows = call.put_values(settings);
  args.bias_tokens = call.put_ints(input.bias_tokens);
  args.biases = call.put_floats("biases", input.biases);
  args.num_biases = input.biases.size();
  if (input.masks) args.masks = reinterpret_cast<const uint32_t*>(call.put_ints(*input.masks));
  if (input.counts) {
    args.counts = call.matrix(rows, vocab_size, DType::kInt32);
    call.upload(args.counts.data, *input.counts);
  }
  args.wants_logprobs = true;
  args.num_top = input.num_top;
  const TensorView tokens = call.matrix(rows, 1, DType::kInt32);
  const TensorView logprobs = call.matrix(rows, 1, DType::kFloat32);
  const TensorView top_tokens = call.matrix(rows, args.num_top, DType::kInt32);
  const TensorView top_logprobs = call.matrix(rows, args.num_top, DType::kFloat32);
  args.tokens = tokens.as<int32_t>();
  args.logprobs = logprobs.as<float>();
  args.top_tokens = top_tokens.as<int32_t>();
  args.top_logprobs = top_logprobs.as<float>();
  args.workspace = call.allocate(ops.sample_workspace(args));
  ops.sample(args);
  return py::make_tuple(call.download<IntArray>(tokens), call.download<FloatArray>(logprobs),
                        call.download<IntArray>(top_tokens),
                        call.download<FloatArray>(top_logprobs));
}

}  // namespace packhorse
