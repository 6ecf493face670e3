#include "cpu/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "core/arena.h"
#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(size_t bytes) {
    const size_t alignment = bytes >= kHugePage ? kHugePage : Arena::kAlignment;
    // aligned_alloc requires a multiple of the alignment. Huge pages that are never touched cost
    // nothing.
    if (bytes <= SIZE_MAX - alignment) {
      data_ = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    if (data_ == nullptr && bytes > 0) {
      throw OutOfMemory(concat("cpu: ", bytes, " bytes could not be allocated, ",
                               free_host_memory(), " bytes are free"));
    }
    bytes_ = bytes;
    // Huge pages reduce TLB misses when weights are read. If the kernel refuses, only that gain is
    // lost.
    if (bytes >= kHugePage) static_cast<void>(madvise(data_, bytes, MADV_HUGEPAGE));
  }
  ~HostMemory() override { std::free(data_); }
};

}  // namespace

std::unique_ptr<DeviceMemory> allocate_host_memory(size_t bytes) {
  return std::make_unique<HostMemory>(bytes);
}

size_t free_host_memory() {
  // MemAvailable counts what the page cache would give back, which _SC_AVPHYS_PAGES does not.
  std::ifstream file("/proc/meminfo");
  std::string name;
  size_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace packhorse::cpu
