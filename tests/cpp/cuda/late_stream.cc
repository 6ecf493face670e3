#include "cuda/late_stream.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "test.h"

namespace packhorse {

LateStream late_stream;

void LateStream::work_until(size_t count) {
  for (; done < count; ++done) {
    asked.front()();
    asked.pop_front();
  }
}

bool LateStream::is_page_locked(const void* address) const {
  const auto* const wanted = static_cast<const char*>(address);
  return std::any_of(page_locked.begin(), page_locked.end(), [&](const auto& range) {
    const auto* const begin = static_cast<const char*>(range.first);
    return wanted >= begin && wanted < begin + range.second;
  });
}

cudaError_t LateStream::call(const char* name) {
  if (failing != name) return cudaSuccess;
  failing.clear();
  return cudaErrorUnknown;
}

}  // namespace packhorse

using packhorse::late_stream;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  auto* const position = new size_t(0);
  late_stream.events.insert(position);
  *made = reinterpret_cast<cudaEvent_t>(position);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  auto* const position = reinterpret_cast<size_t*>(event);
  late_stream.events.erase(position);
  delete position;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (const cudaError_t error = late_stream.call("cudaEventRecord")) return error;
  *reinterpret_cast<size_t*>(event) = late_stream.num_asked();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  late_stream.work_until(*reinterpret_cast<size_t*>(event));
  return late_stream.call("cudaEventSynchronize");
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  late_stream.work_until(late_stream.num_asked());
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) {
  if (const cudaError_t error = late_stream.call("cudaHostAlloc")) return error;
  *made = std::calloc(bytes, 1);
  late_stream.page_locked[*made] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* made) {
  late_stream.page_locked.erase(made);
  std::free(made);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  *found = {};
  found->type =
      late_stream.is_page_locked(address) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  return late_stream.call("cudaPointerGetAttributes");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (const cudaError_t error = late_stream.call("cudaMemcpyAsync")) return error;
  // The last byte alone tells memory that is page-locked in part from the whole.
  CHECK(late_stream.is_page_locked(static_cast<const char*>(from) + (bytes - 1)));
  ++late_stream.transfers;
  late_stream.ask([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

// Functions that must be linked, but that no test calls.
cudaError_t cudaSetDevice(int) { return cudaErrorNoDevice; }
cudaError_t cudaMalloc(void**, size_t) { return cudaErrorNoDevice; }
cudaError_t cudaFree(void*) { return cudaErrorNoDevice; }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return cudaErrorNoDevice; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "a name"; }
const char* cudaGetErrorString(cudaError_t) { return "a reason"; }

}  // extern "C"
