// Any numbers as a packed batch: refused with InvalidArgument, or a batch whose every index a
// kernel may follow without a look of its own.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "packhorse/error.h"
#include "packhorse/packed_tokens.h"

namespace {

using packhorse::PackedLimits;
using packhorse::PackedTokens;

// Takes the numbers of a batch from the input; what is missing reads as zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t byte() {
    uint8_t value = 0;
    take(&value, 1);
    return value;
  }
  // Mostly small numbers, since limits are small; some from the whole range of int32.
  int32_t number() {
    const uint8_t kind = byte();
    if (kind < 224) return int32_t{kind} - 8;
    int32_t value = 0;
    take(&value, sizeof value);
    return value;
  }
  std::vector<int32_t> numbers() {
    std::vector<int32_t> values(byte() % 64);
    for (int32_t& value : values) value = number();
    return values;
  }

 private:
  void take(void* to, size_t bytes) {
    const size_t some = std::min(bytes, size_);
    std::memcpy(to, data_, some);
    data_ += some;
    size_ -= some;
  }

  const uint8_t* data_;
  size_t size_;
};

void require(bool condition) {
  if (!condition) std::abort();
}

void require_range(std::span<const int32_t> values, int64_t limit) {
  for (const int32_t value : values) require(value >= 0 && value < limit);
}

// Requires what kernels rely on, written again without a look at the checks.
void require_sound(const PackedTokens& batch, const PackedLimits& limits) {
  const auto& offsets = batch.cu_seqlens;
  require(!offsets.empty() && offsets.front() == 0);
  require(size_t(offsets.back()) == batch.ids.size());
  for (size_t i = 1; i < offsets.size(); ++i) {
    require(offsets[i] >= offsets[i - 1]);
    require(offsets[i] - offsets[i - 1] <= limits.max_seqlen);
  }
  require(batch.num_tokens() <= limits.max_tokens);
  require(batch.num_sequences() <= limits.max_sequences);
  require_range(batch.ids, limits.vocab_size);
  require(batch.type_ids.empty() || batch.type_ids.size() == batch.ids.size());
  require_range(batch.type_ids, limits.type_vocab_size);
  require(batch.position_ids.empty() || batch.position_ids.size() == batch.ids.size());
  require_range(batch.position_ids, limits.num_positions);
  require(int64_t(batch.prediction_rows.size()) <= limits.max_predictions);
  require_range(batch.prediction_rows, batch.num_tokens());
  for (size_t i = 1; i < batch.prediction_rows.size(); ++i) {
    require(batch.prediction_rows[i] > batch.prediction_rows[i - 1]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const PackedLimits limits = {.max_tokens = input.byte(),
                               .max_sequences = input.byte(),
                               .max_seqlen = input.byte(),
                               .vocab_size = input.byte(),
                               .type_vocab_size = input.byte(),
                               .num_positions = input.byte(),
                               .max_predictions = input.byte()};
  std::array<std::vector<int32_t>, 5> arrays;
  for (std::vector<int32_t>& array : arrays) array = input.numbers();
  if (input.byte() % 2 == 0) {
    // Offsets that fit the tokens, so that what comes after them is reached.
    std::sort(arrays[1].begin(), arrays[1].end());
    if (!arrays[1].empty()) arrays[1].front() = 0, arrays[1].back() = int32_t(arrays[0].size());
  }
  const PackedTokens batch = {.ids = arrays[0],
                              .cu_seqlens = arrays[1],
                              .type_ids = arrays[2],
                              .position_ids = arrays[3],
                              .prediction_rows = arrays[4]};
  try {
    packhorse::check(batch, limits);
    require_sound(batch, limits);
  } catch (const packhorse::InvalidArgument& error) {
    require(!error.message().empty());
  }
  return 0;
}
