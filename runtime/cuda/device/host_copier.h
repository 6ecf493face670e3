// Copies within host memory by several threads, since one of them reads and writes less than a
// device's bus takes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace packhorse::cuda {

class HostCopier {
 public:
  /// `threads`: with the caller's. Throws RuntimeError if one of them cannot be started.
  explicit HostCopier(int threads);
  ~HostCopier();
  HostCopier(const HostCopier&) = delete;
  HostCopier& operator=(const HostCopier&) = delete;

  /// As memcpy. One caller at a time, of the process that made this object.
  void copy(void* to, const void* from, size_t bytes);

 private:
  void work(size_t helper);
  void copy_part(size_t part) const;
  void start_round();
  void stop();

  const pid_t owner_;
  // The copy under way, which is divided in as many parts as there are threads.
  unsigned char* to_ = nullptr;
  const unsigned char* from_ = nullptr;
  size_t bytes_ = 0;
  bool stops_ = false;
  std::atomic<uint32_t> round_{0};
  std::atomic<size_t> working_{0};  // helpers that have not finished the round
  std::unique_ptr<std::vector<std::thread>> helpers_;
};

}  // namespace packhorse::cuda
