// Uploads of large inputs on a fake of the CUDA runtime, whose stream works only while it is waited
// for, as late as it may. Runs without a GPU.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/input_upload.h"
#include "cuda/device/memory.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace {

struct FakeStream {
  std::deque<std::function<void()>> asked;
  size_t done = 0;       // how many of all that were asked for are done
  size_t transfers = 0;  // all that were asked for
  std::string failing;   // the call that fails, once
  std::map<const void*, size_t> page_locked;
  size_t events = 0;

  void work_until(size_t count) {
    for (; done < count; ++done) {
      asked.front()();
      asked.pop_front();
    }
  }
  size_t num_asked() const { return done + asked.size(); }
  bool is_page_locked(const void* address) const {
    const auto* const wanted = static_cast<const char*>(address);
    return std::any_of(page_locked.begin(), page_locked.end(), [&](const auto& range) {
      const auto* const begin = static_cast<const char*>(range.first);
      return wanted >= begin && wanted < begin + range.second;
    });
  }
  cudaError_t call(const char* name) {
    if (failing != name) return cudaSuccess;
    failing.clear();
    return cudaErrorUnknown;
  }
};

FakeStream stream;

}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  ++stream.events;
  *made = reinterpret_cast<cudaEvent_t>(new size_t(0));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  --stream.events;
  delete reinterpret_cast<size_t*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *reinterpret_cast<size_t*>(event) = stream.num_asked();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  stream.work_until(*reinterpret_cast<size_t*>(event));
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) {
  *made = std::calloc(bytes, 1);
  stream.page_locked[*made] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* made) {
  stream.page_locked.erase(made);
  std::free(made);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  *found = {};
  found->type = stream.is_page_locked(address) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  return stream.call("cudaPointerGetAttributes");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (const cudaError_t error = stream.call("cudaMemcpyAsync")) return error;
  // The last byte alone tells memory that is page-locked in part from the whole.
  CHECK(stream.is_page_locked(static_cast<const char*>(from) + (bytes - 1)));
  ++stream.transfers;
  stream.asked.emplace_back([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

// Functions that must be linked, but that these tests never call.
cudaError_t cudaSetDevice(int) { return cudaErrorNoDevice; }
cudaError_t cudaMalloc(void**, size_t) { return cudaErrorNoDevice; }
cudaError_t cudaFree(void*) { return cudaErrorNoDevice; }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return cudaErrorNoDevice; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaErrorNoDevice; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "a name"; }
const char* cudaGetErrorString(cudaError_t) { return "a reason"; }

}  // extern "C"

namespace {

using Bytes = std::vector<unsigned char>;

Bytes numbers(size_t bytes, size_t first) {
  Bytes values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<unsigned char>((first + i) * 7 % 251);
  return values;
}

/// Sends `bytes` bytes from `from`, which the caller overwrites as soon as it may.
void check(InputUpload& upload, Bytes& device, unsigned char* from, size_t bytes, bool stays) {
  const bool in_place = stays && stream.is_page_locked(from) &&
                        stream.is_page_locked(from + std::max<size_t>(bytes, 1) - 1);
  const Bytes expected = numbers(bytes, bytes + stream.num_asked());
  std::copy(expected.begin(), expected.end(), from);
  const size_t before = stream.transfers;
  upload.send(from, bytes, stays);
  if (in_place && bytes > 0) CHECK(stream.transfers == before + 1);
  if (!in_place) std::fill_n(from, bytes, static_cast<unsigned char>(0xee));
  stream.work_until(stream.num_asked());
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
  CHECK(stream.page_locked.empty());
  CHECK(stream.events == 0);
}

TEST(input_uploads_copy_what_is_page_locked_in_part) {
  constexpr size_t kBytes = 90'000;
  bool caller_is_read = false;
  Bytes device(kBytes), ordinary(kBytes);
  const auto upload = cuda::make_input_upload(0, nullptr, device.data(), kBytes, caller_is_read);
  for (const size_t begin : {size_t{0}, kBytes / 2}) {
    stream.page_locked[ordinary.data() + begin] = kBytes / 2;
    check(*upload, device, ordinary.data(), kBytes, true);
    stream.page_locked.erase(ordinary.data() + begin);
  }
  // A driver that does not know ordinary memory.
  stream.failing = "cudaPointerGetAttributes";
  check(*upload, device, ordinary.data(), kBytes, true);
  CHECK(!caller_is_read);
}

TEST(input_uploads_go_on_after_an_error) {
  constexpr size_t kBytes = 90'000;
  bool caller_is_read = false;
  Bytes device(kBytes), ordinary(kBytes);
  const auto upload = cuda::make_input_upload(0, nullptr, device.data(), kBytes, caller_is_read);
  stream.failing = "cudaMemcpyAsync";
  CHECK_THROWS_AS(RuntimeError, upload->send(ordinary.data(), kBytes, true), "cudaMemcpyAsync");
  check(*upload, device, ordinary.data(), kBytes, false);
}
