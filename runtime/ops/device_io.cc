#include "ops/device_io.h"

#include <algorithm>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

void check_finding(const InputFinding& finding, uint32_t run, int64_t num_tokens,
                   const PackedLimits& limits) {
  if (run == 0 || finding.run != run) return;
  const auto out_of_range = [&](const char* array, const char* bound, int64_t limit) {
    throw InvalidArgument(concat(array, "[", finding.index, "] = ", finding.found,
                                 " is out of range; expected 0 <= value < ", bound, " = ", limit));
  };
  const int32_t index = finding.index;
  switch (finding.code) {
    case InputFinding::kIds:
      return out_of_range("ids", "vocab_size", limits.vocab_size);
    case InputFinding::kTypeIds:
      return out_of_range("type_ids", "type_vocab_size", limits.type_vocab_size);
    case InputFinding::kPositionIds:
      return out_of_range("position_ids", "num_positions", limits.num_positions);
    case InputFinding::kFirstOffset:
      throw InvalidArgument(concat("cu_seqlens[0] = ", finding.found, "; expected 0"));
    case InputFinding::kDecreasingOffset:
      throw InvalidArgument(concat("cu_seqlens decreases: cu_seqlens[", index,
                                   "] = ", finding.found, " after ", finding.before));
    case InputFinding::kLastOffset:
      throw InvalidArgument(concat("cu_seqlens[", index, "] = ", finding.found, ", but there are ",
                                   num_tokens, " tokens"));
    case InputFinding::kLength:
      throw InvalidArgument(
          concat("sequence ", index - 1, " has ", int64_t{finding.found} - finding.before,
                 " tokens; the model takes max_seqlen = ", limits.max_seqlen, " at most"));
  }
}

void DeviceIo::order(StreamHandle before, StreamHandle after) {
  if (before == after) return;
  const auto event = make_event();
  event->record(before);
  event->make_wait(after);
}

void Readers::add(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  for (const auto& reader : readers_) {
    if (reader.first == stream) return;
  }
  readers_.emplace_back(stream, io_->make_event());
}

void Readers::finish() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, event] : readers_) {
    try {
      event->record(stream);
    } catch (...) {
      unknown_ = true;
    }
  }
}

void Readers::make_wait(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (unknown_) io_->synchronize_device();
  for (const auto& reader : readers_) reader.second->make_wait(stream);
  readers_.clear();
  unknown_ = false;
}

void Readers::wait() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (unknown_) io_->synchronize_device();
    for (const auto& reader : readers_) reader.second->synchronize();
  } catch (...) {
    // The device failed, or this process was forked from the one that opened it. There is nothing
    // left to wait for.
  }
}

}  // namespace packhorse
