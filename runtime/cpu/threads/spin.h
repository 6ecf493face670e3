// Pauses of a thread that waits for another one.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace packhorse::cpu {

/// Tells the processor that this thread waits, which takes some 10 to 100 cycles.
inline void pause_briefly() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#else
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most processors
#endif
}

/// A counter that is read in a few nanoseconds and never stands still.
inline uint64_t ticks_now() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#else
  uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}

/// Steps of the counter in about so many microseconds.
inline uint64_t ticks_of(uint64_t microseconds) noexcept {
#if defined(__x86_64__)
  return microseconds * 3000;  // the time stamp counter has 2 to 4 ticks in a nanosecond
#else
  uint64_t frequency = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  return microseconds * frequency / 1'000'000;
#endif
}

}  // namespace packhorse::cpu
