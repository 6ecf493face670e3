#include "core/math.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "test.h"

namespace packhorse {
namespace {

TEST(ceil_div_and_round_up) {
  for (int64_t b = 1; b < 20; ++b) {
    for (int64_t a = 0; a < 100; ++a) {
      const int64_t quotient = ceil_div(a, b);
      CHECK(quotient * b >= a && (quotient - 1) * b < a);
      CHECK(round_up(a, b) == quotient * b);
    }
  }
  // The result has the common type of both, which holds sizes over 32 bits.
  static_assert(std::is_same_v<decltype(ceil_div(size_t{1}, 2)), size_t>);
  static_assert(ceil_div((int64_t{1} << 40) + 1, 1 << 20) == (1 << 20) + 1);
  static_assert(round_up(uint64_t{1} << 63, 2) == uint64_t{1} << 63);
}

}  // namespace
}  // namespace packhorse
