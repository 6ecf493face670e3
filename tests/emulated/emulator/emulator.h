// An emulator of CUDA kernels on the host, as its tests see it.
//
// A launch runs the blocks of its grid one after another, in an order that the seed decides, or
// some of them at a time, in turns that the seed decides. Each thread of a block is a fibre of one
// thread of the host. A fibre runs until it comes to something that may wait for others, and the
// seed decides which one goes on. What is asynchronous on the device (cp.async, TMA, wgmma) is done
// as late as the kernel allows, at once, or at any time between, as the seed decides, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace emulated {

/// A fault of a kernel, with the thread that made it; or that the kernel does not end.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// When asynchronous operations are done.
enum class Timing : uint8_t { kLate, kEarly, kAny };

struct Options {
  uint64_t seed = 0;
  Timing timing = Timing::kLate;
  /// Lanes of a warp that wait for the same phase of an mbarrier go on together, as they do on
  /// devices as long as they have not gone different ways. If false, one lane may be a phase ahead.
  bool together = true;
  /// Blocks of a grid that run at the same time: each goes on for a while, and then another one.
  unsigned resident = 1;
};

/// The options of all later launches. By default a seed's timing is late, early or any in turn.
void set_options(const Options& options);
inline void set_seed(uint64_t seed, unsigned resident = 1) {
  set_options({.seed = seed, .timing = static_cast<Timing>(seed % 3), .resident = resident});
}

/// Totals over all launches so far.
struct Counts {
  uint64_t launches = 0, blocks = 0, switches = 0, instructions = 0;
};
const Counts& counts();

/// Memory of an emulated device, with a megabyte before and after it that nobody may access. Bytes
/// are 0xff at first: NaN in all formats.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  size_t whole_;
  void* base_;
  void* data_;
};

}  // namespace emulated
