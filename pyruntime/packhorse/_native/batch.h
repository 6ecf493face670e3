// A batch of a session as a copy of the caller's arrays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "packhorse/packed_tokens.h"

namespace packhorse {

/// The batch, whose arrays lie in `held` one after the other.
inline PackedTokens copy_batch(const PackedTokens& batch, std::vector<int32_t>& held) {
  PackedTokens copy = batch;
  const std::array arrays = {&copy.ids, &copy.cu_seqlens, &copy.type_ids, &copy.position_ids,
                             &copy.prediction_rows};
  size_t size = 0;
  for (const std::span<const int32_t>* array : arrays) size += array->size();
  held.reserve(size);
  for (std::span<const int32_t>* array : arrays) {
    const size_t first = held.size();
    held.insert(held.end(), array->begin(), array->end());
    *array = {held.data() + first, array->size()};
  }
  return copy;
}

}  // namespace packhorse
