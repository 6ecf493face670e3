#include "core/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "core/math.h"

namespace packhorse {
namespace {

struct Range {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};  // set last, and 0 while the slot is not in use
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
};

// The handler may only touch what needs no lock and no allocation.
std::array<Range, FaultGuard::kMost> ranges;
struct sigaction previous;
uintptr_t page_size = 4096;

// The thread that faults reads memory which a guard of its own covers, so that this guard's slot
// does not change meanwhile, whatever happens to the others.
Range* find(uintptr_t address) {
  for (Range& range : ranges) {
    const uintptr_t begin = range.begin.load(std::memory_order_acquire);
    if (begin != 0 && begin <= address && address < range.end.load()) return &range;
  }
  return nullptr;
}

// A file is cut at its end, so that everything behind the page is gone, too.
bool replace_by_zeros(Range& range, uintptr_t address) {
  const uintptr_t page = address / page_size * page_size;
  void* const zeros = mmap(reinterpret_cast<void*>(page), range.end - page, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (zeros == MAP_FAILED) return false;
  range.lost = true;
  return true;
}

void on_fault(int number, siginfo_t* info, void* context) {
  const int error = errno;
  Range* const range = find(reinterpret_cast<uintptr_t>(info->si_addr));
  const bool saved =
      range != nullptr && replace_by_zeros(*range, reinterpret_cast<uintptr_t>(info->si_addr));
  errno = error;
  if (saved) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(number, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    return previous.sa_handler(number);
  }
  // The instruction runs again and ends the process as if there were no handler. A signal that
  // another process sent comes from no instruction.
  signal(number, SIG_DFL);
  if (info->si_code <= 0) raise(number);
}

void install() {
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, nullptr, &previous);  // the handler needs it from its first moment on
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

FaultGuard::FaultGuard(void* data, size_t bytes) : slot_(0) {
  static const bool installed = (install(), true);
  static_cast<void>(installed);
  while (slot_ < kMost && ranges[slot_].taken.exchange(true)) ++slot_;
  if (slot_ == kMost) return;
  Range& range = ranges[slot_];
  range.lost = false;
  // Whole pages, as the system maps them.
  range.end = round_up(reinterpret_cast<uintptr_t>(data) + bytes, page_size);
  range.begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_release);
}

FaultGuard::~FaultGuard() {
  if (slot_ == kMost) return;
  ranges[slot_].begin = 0;
  ranges[slot_].taken = false;
}

bool FaultGuard::lost() const { return slot_ < kMost && ranges[slot_].lost; }

}  // namespace packhorse
