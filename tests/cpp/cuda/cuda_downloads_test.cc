// A download that was not synchronised when an exception came must not write to memory any more,
// and an upload of any size and kind of memory brings every byte.
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

TEST(cuda_uploads_of_inputs_bring_every_byte) {
  if (cuda_device_count() == 0) return;
  const Backend backend = make_cuda_backend(0, AttentionAlgorithm::kAuto);
  DeviceContext& device = *backend.device;
  constexpr size_t kMost = (size_t{9} << 20) + 3;  // more than the slots hold
  const auto memory = device.allocate(kMost);
  const auto upload = device.make_input_upload(memory->data(), kMost);
  const auto locked = device.io()->allocate_shared(kMost);  // page-locked memory of a caller
  std::vector<unsigned char> values(kMost), found(kMost);
  unsigned char first = 0;
  for (const size_t bytes : {kMost, size_t{0}, size_t{1}, size_t{1} << 20, kMost - 5}) {
    for (const bool page_locked : {false, true}) {
      for (const bool stays : {false, true}) {
        ++first;
        for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<unsigned char>(first + i * 7);
        unsigned char* const from =
            page_locked ? static_cast<unsigned char*>(locked->data()) : values.data();
        std::copy_n(values.data(), bytes, from);
        const std::vector<unsigned char> expected(values.begin(),
                                                  values.begin() + static_cast<ptrdiff_t>(bytes));
        upload->send(from, bytes, stays);
        if (!stays) std::fill_n(from, bytes, static_cast<unsigned char>(0xee));
        found.assign(bytes, 0);
        device.download(found.data(), memory->data(), bytes);
        device.synchronize();
        CHECK(found == expected);
      }
    }
  }
}
