#include "session/request_validator.h"

#include <unistd.h>

#include <string>

#include "core/format.h"

namespace packhorse {

RequestValidator::RequestValidator(const LoadedModel& model) : model_(model), process_(getpid()) {}

// fork() copies neither the worker threads nor the device context, so a forked process cannot run
// the session.
void RequestValidator::check_process() const {
  if (getpid() == process_) return;
  throw RuntimeError(concat("this session was loaded in process ", process_,
                            " and cannot run in process ", getpid(),
                            ", forked from it: load a session after the fork"));
}

void RequestValidator::refuse_output(const char* name) const {
  std::string known;
  for (size_t i = 0; i < kOutputNames.size(); ++i) {
    if (!model_.layouts[i].exists()) continue;
    known += concat(known.empty() ? "" : ", ", kOutputNames[i]);
  }
  throw InvalidArgument(concat("output '", name, "' was asked for, but this model has: ", known));
}

DeviceIo& RequestValidator::io() const {
  if (DeviceIo* io = model_.backend.device->io()) return *io;
  throw InvalidArgument(concat("this session runs on ", name_of(model_.options.device),
                               ": batches and outputs are in host memory, without a stream"));
}

void RequestValidator::check_positions(bool given) const {
  if (!given || model_.spec.takes_positions()) return;
  throw InvalidArgument("position_ids were given, but this model knows distances only");
}

void RequestValidator::check_kind(bool patches) const {
  if (patches == takes_patches(model_.spec)) return;
  throw InvalidArgument(patches ? "a batch of patches was given, but this model takes token ids"
                                : "a batch of token ids was given, but this model takes patches");
}

void RequestValidator::check_tokens(const PackedPatches& patches) const {
  check_kind(true);
  packhorse::check(patches, model_.patch_limits);
}

void RequestValidator::check_tokens(const DevicePatches& patches) const {
  check_kind(true);
  const DeviceIo& device = io();
  if (patches.dtype != DType::kFloat32 && patches.dtype != DType::kFloat16 &&
      patches.dtype != DType::kBFloat16) {
    throw InvalidArgument(
        concat("features is ", name_of(patches.dtype), ", expected float32, float16 or bfloat16"));
  }
  check_grids(patches.grids, patches.num_patches, patches.columns, model_.patch_limits);
  if (patches.num_patches == 0) return;
  if (patches.features == nullptr) throw InvalidArgument("features are missing");
  device.check_pointer("features", patches.features);
}

void RequestValidator::check_tokens(const PackedTokens& tokens) const {
  check_kind(false);
  packhorse::check(tokens, model_.limits);
  check_positions(!tokens.position_ids.empty());
}

void RequestValidator::check_tokens(const DeviceTokens& tokens) const {
  check_kind(false);
  const DeviceIo& device = io();
  check_capacity(tokens.num_tokens, tokens.num_sequences, model_.limits);
  if (tokens.cu_seqlens == nullptr || tokens.num_sequences < 0) {
    throw InvalidArgument("cu_seqlens is empty; expected B + 1 offsets, at least [0]");
  }
  if (tokens.ids == nullptr && tokens.num_tokens > 0) throw InvalidArgument("ids are missing");
  check_prediction_rows(tokens.prediction_rows, tokens.num_tokens, model_.limits);
  check_positions(tokens.position_ids != nullptr);
  const auto check_pointer = [&](const char* name, const int32_t* data) {
    if (data != nullptr) device.check_pointer(name, data);
  };
  check_pointer("cu_seqlens", tokens.cu_seqlens);
  if (tokens.num_tokens == 0) return;
  check_pointer("ids", tokens.ids);
  check_pointer("type_ids", tokens.type_ids);
  check_pointer("position_ids", tokens.position_ids);
}

}  // namespace packhorse
