// Launches of emulated kernels, and what a thread of one knows of itself.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

// Built-in variables: those of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulated {

/// The running thread's place in its grid.
struct Place {
  uint3 thread, block;
  dim3 block_extent, grid_extent;
};

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;
  const void* kernel = nullptr;
};

/// Runs the blocks of a grid, so many at a time as the options say. `body` is called once for each
/// thread. Throws Error.
void launch(const Grid& grid, const std::function<void()>& body);

/// The dynamic shared memory of the running block, and a static variable there.
void* dynamic_shared(size_t alignment);
void* static_shared(const void* key, size_t bytes, size_t alignment);

template <class T, class Tag>
T& shared_variable(Tag, size_t alignment) {
  static const char key = 0;
  return *static_cast<T*>(static_shared(&key, sizeof(T), std::max(alignment, alignof(T))));
}

template <class... Params, class... Args>
void launch_with(Grid grid, void (*kernel)(Params...), Args&&... args) {
  const std::tuple<std::remove_cv_t<Params>...> held(std::forward<Args>(args)...);
  grid.kernel = reinterpret_cast<const void*>(kernel);
  launch(grid, [&] { std::apply(kernel, held); });
}

/// kernel<<<blocks, threads, shared_bytes, stream>>>, to be called with the arguments.
template <class... Params>
auto launch_of(void (*kernel)(Params...), dim3 blocks, dim3 threads, size_t shared_bytes = 0,
               cudaStream_t = nullptr) {
  return [=]<class... Args>(Args&&... args) {
    launch_with(Grid{blocks, threads, shared_bytes}, kernel, std::forward<Args>(args)...);
  };
}

}  // namespace emulated
