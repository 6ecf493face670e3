// Fake of the CUDA runtime's streams, events and page-locked memory, with which tests are linked in
// place of the real one. Its stream works only while it is waited for, as late as it may, and its
// calls fail when they are told to. It runs without a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace packhorse {

struct LateStream {
  using Work = std::function<void()>;

  std::deque<Work> asked;
  size_t done = 0;       // how many of all that were asked for are done
  size_t transfers = 0;  // calls of cudaMemcpyAsync
  std::string failing;   // the call that fails, once
  std::set<void*> events;
  std::map<const void*, size_t> page_locked;  // bytes from an address on

  void ask(Work work) { asked.push_back(std::move(work)); }
  void work_until(size_t count);
  size_t num_asked() const { return done + asked.size(); }
  bool is_page_locked(const void* address) const;
  /// Result of the call `name`.
  cudaError_t call(const char* name);
};

/// The stream of all tests of a program.
extern LateStream late_stream;

}  // namespace packhorse
