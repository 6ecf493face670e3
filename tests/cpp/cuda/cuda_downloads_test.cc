// A download that was not synchronised when an exception came must not write to memory any more.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/cuda_backend.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

TEST(cuda_downloads_of_a_failed_run_are_dropped) {
  if (cuda_device_count() == 0) return;
  const Backend backend = make_cuda_backend(0, AttentionAlgorithm::kAuto);
  DeviceContext& device = *backend.device;
  // The second size is large, so its download goes straight to the caller's memory.
  for (const size_t count : {size_t{5}, size_t{3} << 20}) {
    const std::vector<float> values(count, 1.0f);
    const size_t bytes = count * sizeof(float);
    const auto memory = device.allocate(bytes);
    device.upload(memory->data(), values.data(), bytes);
    std::vector<float> dropped(count, -1.0f), delivered(count, -1.0f);
    try {
      const DownloadScope downloads(device);
      device.download(dropped.data(), memory->data(), bytes);
      throw RuntimeError("between two outputs");
    } catch (const RuntimeError&) {
    }
    // Overwrites the memory, as if it had been freed and belonged to somebody else now.
    std::fill(dropped.begin(), dropped.end(), -2.0f);
    {
      const DownloadScope downloads(device);
      device.download(delivered.data(), memory->data(), bytes);
      device.synchronize();
    }
    CHECK(dropped == std::vector<float>(count, -2.0f));
    CHECK(delivered == values);
  }
}
