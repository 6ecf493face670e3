// Arguments of the operator that a step of generation begins with. They are apart from args.h
// because kernels that compute include args.h and do not depend on these.
#pragma once

#include <cstdint>

#include "ops/args.h"

namespace packhorse {

/// Completes what the host has uploaded of a step by what is known on the device alone. For each
/// sequence b of the batch:
///   - its pages, pages[page_begins[b]] to pages[page_begins[b + 1] - 1], become the beginning of
///     row b of `table`;
///   - where sources[b] is not negative, its last id becomes tokens[sources[b]], which the step
///     before has chosen, or 0 where that has chosen none;
///   - where count_slots[b] is not negative, its last id is counted once more in this row of
///     `counts`, as CountTokensArgs counts generated tokens. No two sequences have the same row.
struct BeginStepArgs {
  BatchView batch;                       // every sequence has a token
  int32_t* ids = nullptr;                // [num_tokens]
  const int32_t* sources = nullptr;      // [num_sequences]
  const int32_t* tokens = nullptr;       // rows that `sources` may name
  const int32_t* count_slots = nullptr;  // [num_sequences]
  TensorView counts;                     // [slots, vocab_size] int32
  const int32_t* page_begins = nullptr;  // [num_sequences + 1]
  const int32_t* pages = nullptr;        // [page_begins[num_sequences]]
  int32_t* table = nullptr;              // [num_sequences, table_stride]
  int64_t table_stride = 0;
};

}  // namespace packhorse
