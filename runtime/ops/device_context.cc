#include "ops/device_context.h"

#include <chrono>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

std::vector<RecordingBounds> DeviceContext::recording_bounds(int64_t, int64_t) const { return {}; }

std::unique_ptr<Recording> DeviceContext::record(const std::function<void()>&) {
  throw RuntimeError(concat(name_of(device()), " makes no recordings"));
}

double DeviceContext::elapsed_ms(const std::function<void()>& work) {
  synchronize();
  const auto start = std::chrono::steady_clock::now();
  work();
  synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

void DeviceContext::for_each(int64_t count, const std::function<void(int64_t)>& body) {
  for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace packhorse
