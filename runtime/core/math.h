// Integer arithmetic of sizes, for the host and for kernels.
#pragma once

namespace packhorse {

/// ceil(a / b) of a >= 0 and b > 0, in the common type of both. Inlined always: a copy that was
/// compiled for one instruction set must not be linked into code for another.
template <typename A, typename B>
[[gnu::always_inline]] constexpr auto ceil_div(A a, B b) {
  using T = decltype(a + b);
  return (static_cast<T>(a) + static_cast<T>(b) - 1) / static_cast<T>(b);
}

/// The smallest multiple of b that is at least a.
template <typename A, typename B>
[[gnu::always_inline]] constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * static_cast<decltype(a + b)>(b);
}

}  // namespace packhorse
