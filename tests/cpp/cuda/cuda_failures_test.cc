// Tests that nothing is left behind where a call of the CUDA runtime fails. The runtime is a fake,
// which this program is linked with in place of the real one; it runs without a GPU.
#include <cstdlib>
#include <set>
#include <string>

#include "cuda/device/graph.h"
#include "cuda/device/memory.h"
#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace {

/// The objects that the fake has made and not destroyed, and the call that is to fail.
struct Fake {
  std::set<void*> alive;
  std::string failing;
  int calls_before = 0;  // calls of `failing` that succeed before one fails
  bool capturing = false;
  bool lost = false;  // the device is gone: nothing works any more

  cudaError_t call(const char* name) {
    if (lost) return cudaErrorDevicesUnavailable;
    if (failing != name || calls_before-- > 0) return cudaSuccess;
    return cudaErrorUnknown;
  }
  template <class T>
  cudaError_t make(const char* name, T* to) {
    if (const cudaError_t error = call(name)) return error;
    void* const made = std::malloc(1);
    alive.insert(made);
    *to = static_cast<T>(made);
    return cudaSuccess;
  }
  cudaError_t destroy(void* made) {
    if (lost) {
      alive.erase(made);
      std::free(made);
      return cudaErrorDevicesUnavailable;
    }
    if (alive.erase(made) == 0) return cudaErrorInvalidResourceHandle;
    std::free(made);
    return cudaSuccess;
  }
};

Fake fake;

void fail_at(const std::string& name, int calls_before = 0) {
  fake.failing = name;
  fake.calls_before = calls_before;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (fake.capturing) return cudaErrorIllegalState;
  const cudaError_t error = fake.call("cudaStreamBeginCapture");
  fake.capturing = error == cudaSuccess;
  return error;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  if (!fake.capturing) return cudaErrorIllegalState;
  fake.capturing = false;
  return fake.make("cudaStreamEndCapture", graph);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t, unsigned long long) {
  return fake.make("cudaGraphInstantiate", made);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return fake.call("cudaGraphUpload"); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return fake.call("cudaGraphLaunch"); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) { return fake.destroy(made); }
cudaError_t cudaGraphDestroy(cudaGraph_t made) { return fake.destroy(made); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  return fake.make("cudaEventCreateWithFlags", made);
}
cudaError_t cudaEventDestroy(cudaEvent_t made) { return fake.destroy(made); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) {
  if (const cudaError_t error = fake.call("cudaHostAlloc")) return error;
  fake.alive.insert(*made = std::malloc(bytes));
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* made) { return fake.destroy(made); }

// Functions that must be linked, but that these tests never call.
cudaError_t cudaGetDevice(int*) { return cudaErrorNoDevice; }
cudaError_t cudaSetDevice(int) { return cudaErrorNoDevice; }
cudaError_t cudaMalloc(void**, size_t) { return cudaErrorNoDevice; }
cudaError_t cudaFree(void*) { return cudaErrorNoDevice; }
cudaError_t cudaMemGetInfo(size_t*, size_t*) { return cudaErrorNoDevice; }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaErrorNoDevice;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaErrorNoDevice; }

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "a name"; }
const char* cudaGetErrorString(cudaError_t) { return "a reason"; }

}  // extern "C"

TEST(a_recording_that_fails_leaves_nothing) {
  int worked = 0;
  const auto record = [&] { return cuda::capture_graph(nullptr, [&] { ++worked; }); };
  for (const char* name : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                           "cudaGraphUpload"}) {
    fail_at(name);
    CHECK_THROWS_AS(RuntimeError, record(), name);
    CHECK(fake.alive.empty());
    CHECK(!fake.capturing);
    fail_at("");
    const auto graph = record();
    graph->launch();
    CHECK(fake.alive.size() == 1);  // the launched graph
  }
  CHECK(fake.alive.empty());
  CHECK(worked == 7);
  CHECK_THROWS_AS(InvalidArgument,
                  cuda::capture_graph(nullptr, [] { throw InvalidArgument("no kernel"); }),
                  "no kernel");
  CHECK(fake.alive.empty());
  CHECK(!fake.capturing);
}

// Errors come out of what is asked of it, and its objects are destroyed without one.
TEST(a_device_that_is_lost) {
  {
    const auto graph = cuda::capture_graph(nullptr, [] {});
    const cuda::UploadRing ring;
    fake.lost = true;
    CHECK_THROWS_AS(RuntimeError, graph->launch(), "cudaGraphLaunch");
    CHECK_THROWS_AS(RuntimeError, cuda::capture_graph(nullptr, [] {}), "cudaStreamBeginCapture");
    CHECK_THROWS_AS(RuntimeError, cuda::UploadRing(), "cudaHostAlloc");
  }
  fake.lost = false;
  CHECK(fake.alive.empty());
}

TEST(an_upload_ring_that_fails_leaves_nothing) {
  fail_at("cudaHostAlloc");
  CHECK_THROWS_AS(RuntimeError, cuda::UploadRing(), "cudaHostAlloc");
  CHECK(fake.alive.empty());
  for (int made = 0; made < cuda::UploadRing::kSlots; ++made) {
    fail_at("cudaEventCreateWithFlags", made);
    CHECK_THROWS_AS(RuntimeError, cuda::UploadRing(), "cudaEventCreateWithFlags");
    CHECK(fake.alive.empty());
  }
  fail_at("");
  {
    const cuda::UploadRing ring;
    CHECK(fake.alive.size() == 1 + cuda::UploadRing::kSlots);
  }
  CHECK(fake.alive.empty());
}
