// Which tokens may come next: the fixed list of a request and its TokenMask, as bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generation/engine/job.h"

namespace packhorse {

/// Words of a mask over the vocabulary.
size_t num_words(int64_t vocab_size);
/// Token t is bit t % 32 of word t / 32. Empty for no ids.
std::vector<uint32_t> words_of(std::span<const int32_t> ids, int64_t vocab_size);

/// Writes Sequence::masked and mask_words for the next token. False: none is allowed; `masked` is
/// then false. Throws what the TokenMask throws.
bool prepare_mask(Sequence& sequence, int64_t vocab_size);

/// Candidates of a beam that no token can follow: never better than another's.
void drop_candidates(Sequence& beam);

}  // namespace packhorse
