#include "cpu/memory/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "core/arena.h"
#include "core/format.h"
#include "core/math.h"
#include "cpu/memory/cgroup_memory.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

// Bytes of all HostMemory of this process. The kernel gives memory when it is first written, so a
// part of them may be missing from what it says is used.
std::atomic<size_t> allocated_bytes = 0;

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(size_t bytes) {
    const size_t alignment = bytes >= kHugePage ? kHugePage : Arena::kAlignment;
    // aligned_alloc requires a multiple of the alignment. Huge pages that are never touched cost
    // nothing.
    if (bytes <= SIZE_MAX - alignment) {
      data_ = std::aligned_alloc(alignment, round_up(bytes, alignment));
    }
    if (data_ == nullptr && bytes > 0) {
      throw OutOfMemory(concat("cpu: ", bytes, " bytes could not be allocated, ",
                               free_host_memory(), " bytes are free"));
    }
    bytes_ = bytes;
    allocated_bytes += bytes;
    // Huge pages reduce TLB misses when weights are read. If the kernel refuses, only that gain is
    // lost.
    if (bytes >= kHugePage) static_cast<void>(madvise(data_, bytes, MADV_HUGEPAGE));
  }
  ~HostMemory() override {
    allocated_bytes -= bytes_;
    std::free(data_);
  }
};

// The number of a line "name: N kB", in bytes.
std::optional<size_t> read_kibibytes(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  while (file >> name) {
    size_t kibibytes = 0;
    if (name == wanted && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Bytes that were allocated and not written yet, at least: what else the process has written counts
// against them.
size_t promised_bytes() {
  const size_t allocated = allocated_bytes;
  const std::optional<size_t> written = read_kibibytes("/proc/self/status", "RssAnon:");
  return written ? allocated - std::min(allocated, *written) : 0;
}

}  // namespace

std::unique_ptr<DeviceMemory> allocate_host_memory(size_t bytes) {
  return std::make_unique<HostMemory>(bytes);
}

size_t free_host_memory(const std::string& root) {
  // MemAvailable counts what the page cache would give back, which _SC_AVPHYS_PAGES does not.
  const std::optional<size_t> available = read_kibibytes(root + "/proc/meminfo", "MemAvailable:");
  const size_t machine = available.value_or(static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                                            static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  const size_t free = std::min(machine, free_cgroup_memory(root));
  return free - std::min(free, promised_bytes());
}

}  // namespace packhorse::cpu
