#include "packhorse/session.h"

#include "core/format.h"
#include "ops/backend.h"
#include "session/converted_folder.h"
#include "session/encoder_session.h"

namespace packhorse {
namespace {

void check_options(const SessionOptions& options) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1 || value > (int64_t{1} << 30)) {
      throw InvalidArgument(concat(name, " is ", value, ", expected 1 to 2^30"));
    }
  };
  positive("max_tokens", options.max_tokens);
  positive("max_sequences", options.max_sequences);
  if (options.max_predictions < 0 || options.max_predictions > options.max_tokens) {
    throw InvalidArgument(concat("max_predictions is ", options.max_predictions,
                                 ", expected 0 to max_tokens ", options.max_tokens));
  }
  if (options.output_slots < 0 || options.output_slots > 64) {
    throw InvalidArgument(concat("output_slots is ", options.output_slots, ", expected 0 to 64"));
  }
  if (options.threads < 0 || options.threads > 4096) {
    throw InvalidArgument(
        concat("threads is ", options.threads, ", expected 1 to 4096, or 0 for all cores"));
  }
}

}  // namespace

std::shared_ptr<Session> Session::load(const std::string& folder, const SessionOptions& options) {
  const std::string spec_json = read_spec(folder);
  return load(spec_json, *open_weights(folder), options);
}

std::shared_ptr<Session> Session::load(const std::string& spec_json, const WeightSource& weights,
                                       const SessionOptions& options) {
  check_options(options);
  return make_encoder_session(spec_json, weights, options);
}

MemoryPlan plan_memory(const std::string& spec_json, const SessionOptions& options) {
  check_options(options);
  return plan_encoder_session(spec_json, options);
}

std::vector<std::string> available_devices() { return list_devices(); }

const char* version() { return PACKHORSE_VERSION; }

}  // namespace packhorse
