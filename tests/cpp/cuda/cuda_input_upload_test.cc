// Uploads of large inputs on a stream that works as late as it may. Runs without a GPU.
#include <algorithm>
#include <vector>

#include "cuda/device/input_upload.h"
#include "cuda/device/memory.h"
#include "cuda/late_stream.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace {

using Bytes = std::vector<unsigned char>;

Bytes numbers(size_t bytes, size_t first) {
  Bytes values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<unsigned char>((first + i) * 7 % 251);
  return values;
}

/// Sends `bytes` bytes from `from`, which the caller overwrites as soon as it may.
void check(InputUpload& upload, Bytes& device, unsigned char* from, size_t bytes, bool stays) {
  const bool in_place = stays && late_stream.is_page_locked(from) &&
                        late_stream.is_page_locked(from + std::max<size_t>(bytes, 1) - 1);
  const Bytes expected = numbers(bytes, bytes + late_stream.num_asked());
  std::copy(expected.begin(), expected.end(), from);
  const size_t before = late_stream.transfers;
  upload.send(from, bytes, stays);
  if (in_place && bytes > 0) CHECK(late_stream.transfers == before + 1);
  if (!in_place) std::fill_n(from, bytes, static_cast<unsigned char>(0xee));
  late_stream.work_until(late_stream.num_asked());
  CHECK(std::equal(expected.begin(), expected.end(), device.begin()));
}

}  // namespace

TEST(input_uploads_bring_every_byte) {
  for (const size_t most : {size_t{1}, size_t{5000}, (size_t{19} << 20) + 3}) {
    bool caller_is_read = false;
    Bytes device(most), ordinary(most);
    const cuda::PinnedMemory locked(most);
    const auto upload = cuda::make_input_upload(0, nullptr, device.data(), most, caller_is_read);
    for (const size_t bytes : {most, size_t{0}, size_t{1}, most / 3, most - most / 5}) {
      for (const bool stays : {false, true}) {
        check(*upload, device, ordinary.data(), bytes, stays);
        CHECK(!caller_is_read);
        check(*upload, device, locked.data(), bytes, stays);
        CHECK(caller_is_read == (stays && bytes > 0));
        caller_is_read = false;
      }
    }
  }
  CHECK(late_stream.page_locked.empty());
  CHECK(late_stream.events.empty());
}

TEST(input_uploads_copy_what_is_page_locked_in_part) {
  constexpr size_t kBytes = 90'000;
  bool caller_is_read = false;
  Bytes device(kBytes), ordinary(kBytes);
  const auto upload = cuda::make_input_upload(0, nullptr, device.data(), kBytes, caller_is_read);
  for (const size_t begin : {size_t{0}, kBytes / 2}) {
    late_stream.page_locked[ordinary.data() + begin] = kBytes / 2;
    check(*upload, device, ordinary.data(), kBytes, true);
    late_stream.page_locked.erase(ordinary.data() + begin);
  }
  // A driver that does not know ordinary memory.
  late_stream.failing = "cudaPointerGetAttributes";
  check(*upload, device, ordinary.data(), kBytes, true);
  CHECK(!caller_is_read);
}

TEST(input_uploads_go_on_after_an_error) {
  constexpr size_t kBytes = 90'000;
  bool caller_is_read = false;
  Bytes device(kBytes), ordinary(kBytes);
  const auto upload = cuda::make_input_upload(0, nullptr, device.data(), kBytes, caller_is_read);
  late_stream.failing = "cudaMemcpyAsync";
  CHECK_THROWS_AS(RuntimeError, upload->send(ordinary.data(), kBytes, true), "cudaMemcpyAsync");
  check(*upload, device, ordinary.data(), kBytes, false);
}
