#include "model/shared_weights.h"

#include <map>
#include <mutex>

#include "core/format.h"

namespace packhorse {

std::shared_ptr<const ModelWeights> load_shared_weights(const Spec& spec,
                                                        const std::string& spec_json,
                                                        const SessionOptions& options, Ops& ops,
                                                        const PlannedAllocation& plan,
                                                        const WeightSource& source) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const ModelWeights>> loaded;
  const std::string identity = source.identity();
  if (identity.empty()) return load_weights(spec, options.dtype, ops, plan, source);
  const std::string key = concat(name_of(options.device), '\n', name_of(options.dtype), '\n',
                                 identity, '\n', spec.heads.masked_lm.has_value(), '\n', spec_json);
  // Held while loading, so that two sessions opened at once load once.
  const std::lock_guard lock(mutex);
  std::erase_if(loaded, [](const auto& entry) { return entry.second.expired(); });
  auto weights = loaded[key].lock();
  if (weights == nullptr) {
    weights = load_weights(spec, options.dtype, ops, plan, source);
    loaded[key] = weights;
  }
  return weights;
}

}  // namespace packhorse
