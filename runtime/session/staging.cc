#include "session/staging.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>

#include "core/math.h"

namespace packhorse {
namespace {

// The length of the shortest sequence that has tokens, or 0 for an empty batch.
int64_t shortest(std::span<const int32_t> cu_seqlens) {
  int32_t least = std::numeric_limits<int32_t>::max();
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int32_t length = cu_seqlens[i] - cu_seqlens[i - 1];
    if (length > 0) least = std::min(least, length);
  }
  return cu_seqlens.back() == 0 ? 0 : least;
}

}  // namespace

InputLayout::InputLayout(const Capacity& capacity) {
  const auto aligned = [](int64_t count) { return round_up(count, 64); };
  counts = 0;
  reported = 2;
  cu_seqlens = aligned(3);
  prediction_rows = cu_seqlens + aligned(capacity.max_sequences + 1);
  ids = prediction_rows + aligned(capacity.max_predictions);
  type_ids = ids + aligned(capacity.max_tokens);
  position_ids = type_ids + aligned(capacity.max_tokens);
  size = position_ids + aligned(std::max(capacity.max_tokens, 2 * capacity.max_sequences));
}

Staging::Staging(const Capacity& capacity, const PackedLimits& limits, int32_t* buffer,
                 const TensorView& features, int64_t prefix, DeviceContext& device)
    : layout_(capacity),
      limits_(limits),
      buffer_(buffer),
      features_(features),
      prefix_(prefix),
      device_(device),
      uploads_(
          device.make_upload_buffer(buffer, static_cast<size_t>(layout_.size) * sizeof(int32_t))) {
  if (features.data == nullptr) return;
  feature_uploads_ =
      device.make_input_upload(features.data, static_cast<size_t>(features.size()) * sizeof(float));
}

TokenBatch Staging::upload(const PackedTokens& tokens, bool stays) {
  const int64_t num_tokens = tokens.num_tokens();
  auto* const host = static_cast<int32_t*>(uploads_->acquire());
  host[layout_.counts] = static_cast<int32_t>(num_tokens);
  host[layout_.counts + 1] = static_cast<int32_t>(tokens.num_sequences());
  host[layout_.reported] = 0;
  int32_t* const offsets = host + layout_.cu_seqlens;
  std::copy(tokens.cu_seqlens.begin(), tokens.cu_seqlens.end(), offsets);
  // A graph always goes through max_sequences sequences. Those beyond the batch must be empty.
  std::fill(offsets + tokens.cu_seqlens.size(), offsets + limits_.max_sequences + 1,
            static_cast<int32_t>(num_tokens));
  int64_t end = layout_.ids;
  const auto copy = [&](std::span<const int32_t> values, int64_t at) {
    if (values.empty()) return;
    std::copy(values.begin(), values.end(), host + at);
    end = at + num_tokens;
  };
  std::copy(tokens.prediction_rows.begin(), tokens.prediction_rows.end(),
            host + layout_.prediction_rows);
  copy(tokens.ids, layout_.ids);
  copy(tokens.type_ids, layout_.type_ids);
  if (!tokens.features.empty()) {
    int32_t* number = host + layout_.type_ids;
    int32_t next = 0;
    for (const int32_t id : tokens.ids) *number++ = id == limits_.feature_id ? next++ : -1;
    end = layout_.type_ids + num_tokens;
  }
  copy(tokens.position_ids, layout_.position_ids);
  uploads_->send(static_cast<size_t>(end) * sizeof(int32_t));

  TokenBatch inputs = on_device(!tokens.type_ids.empty(), !tokens.position_ids.empty());
  if (!tokens.features.empty()) {
    feature_uploads_->send(tokens.features.data(), tokens.features.size_bytes(), stays);
    inputs.features = features_.first_rows(std::ranges::count(tokens.ids, limits_.feature_id));
    inputs.row_numbers = buffer_ + layout_.type_ids;
    inputs.type_ids = nullptr;
  }
  inputs.batch.num_tokens = num_tokens;
  inputs.batch.num_sequences = tokens.num_sequences();
  inputs.batch.max_seqlen = tokens.max_seqlen();
  inputs.batch.min_seqlen = shortest(tokens.cu_seqlens);
  inputs.num_predictions = static_cast<int64_t>(tokens.prediction_rows.size());
  return inputs;
}

TokenBatch Staging::upload(const PackedPatches& patches, bool stays) {
  const TokenBatch inputs = upload_grids(patches.grids, patches.num_patches());
  feature_uploads_->send(patches.features.data(), patches.features.size_bytes(), stays);
  return inputs;
}

TokenBatch Staging::load(const DevicePatches& patches) {
  const TokenBatch inputs = upload_grids(patches.grids, patches.num_patches);
  device_.io()->load_floats(patches.features, patches.dtype, patches.num_patches * patches.columns,
                            features_.as<float>());
  return inputs;
}

TokenBatch Staging::upload_grids(std::span<const int32_t> given, int64_t num_patches) {
  const int64_t images = std::ssize(given) / 2;
  auto* const host = static_cast<int32_t*>(uploads_->acquire());
  int32_t* const offsets = host + layout_.cu_seqlens;
  int32_t* const grids = host + layout_.position_ids;
  std::copy(given.begin(), given.end(), grids);
  offsets[0] = 0;
  int64_t longest = 0;
  for (int64_t i = 0; i < images; ++i) {
    const int64_t length = tokens_of(grids[2 * i], grids[2 * i + 1], prefix_);
    offsets[i + 1] = offsets[i] + static_cast<int32_t>(length);
    longest = std::max(longest, length);
  }
  const int32_t num_tokens = offsets[images];
  std::fill(offsets + images + 1, offsets + limits_.max_sequences + 1, num_tokens);
  host[layout_.counts] = num_tokens;
  host[layout_.counts + 1] = static_cast<int32_t>(images);
  host[layout_.reported] = 0;
  const int32_t least =
      shortest(std::span<const int32_t>(offsets, static_cast<size_t>(images) + 1));
  uploads_->send(static_cast<size_t>(layout_.position_ids + 2 * images) * sizeof(int32_t));

  TokenBatch inputs = patch_bounds(num_tokens);
  inputs.features = features_.first_rows(num_patches);
  inputs.batch.counts = nullptr;
  inputs.batch.num_sequences = images;
  inputs.batch.max_seqlen = longest;
  inputs.batch.min_seqlen = least;
  return inputs;
}

TokenBatch Staging::patch_bounds(int64_t num_tokens) const {
  TokenBatch inputs = bounds(num_tokens, limits_.max_sequences, false);
  inputs.ids = nullptr;
  inputs.features = features_.first_rows(std::min(num_tokens, features_.rows()));
  inputs.grids = buffer_ + layout_.position_ids;
  inputs.prefix = prefix_;
  return inputs;
}

TokenBatch Staging::load(const DeviceTokens& tokens, uint32_t run, InputFinding* finding) {
  LoadBatchArgs args;
  args.from = tokens;
  args.limits = limits_;
  args.counts = buffer_ + layout_.counts;
  args.reported = reinterpret_cast<uint32_t*>(buffer_ + layout_.reported);
  args.cu_seqlens = buffer_ + layout_.cu_seqlens;
  args.ids = buffer_ + layout_.ids;
  args.type_ids = buffer_ + layout_.type_ids;
  args.position_ids = buffer_ + layout_.position_ids;
  args.run = run;
  args.finding = finding;
  device_.io()->load_batch(args);
  device_.upload(buffer_ + layout_.prediction_rows, tokens.prediction_rows.data(),
                 tokens.prediction_rows.size_bytes());
  TokenBatch inputs = bounds(tokens.num_tokens, tokens.num_sequences, tokens.type_ids != nullptr);
  // A sequence has at least the tokens that all the others together cannot hold; a single sequence
  // has all tokens.
  const int64_t others = std::max<int64_t>(0, tokens.num_sequences - 1) * limits_.max_seqlen;
  inputs.batch.min_seqlen = std::max<int64_t>(0, tokens.num_tokens - others);
  if (tokens.position_ids != nullptr) inputs.position_ids = args.position_ids;
  inputs.num_predictions = static_cast<int64_t>(tokens.prediction_rows.size());
  return inputs;
}

TokenBatch Staging::bounds(int64_t num_tokens, int64_t num_sequences, bool has_type_ids) const {
  TokenBatch inputs = on_device(has_type_ids, false);
  inputs.batch.num_tokens = num_tokens;
  inputs.batch.num_sequences = num_sequences;
  inputs.batch.max_seqlen = std::min(num_tokens, limits_.max_seqlen);
  inputs.batch.counts = counts();
  return inputs;
}

TokenBatch Staging::on_device(bool has_type_ids, bool has_position_ids) const {
  TokenBatch inputs;
  inputs.batch.cu_seqlens = buffer_ + layout_.cu_seqlens;
  inputs.ids = buffer_ + layout_.ids;
  inputs.prediction_rows = buffer_ + layout_.prediction_rows;
  if (has_type_ids) inputs.type_ids = buffer_ + layout_.type_ids;
  if (has_position_ids) inputs.position_ids = buffer_ + layout_.position_ids;
  return inputs;
}

}  // namespace packhorse
