// Copies by several threads, one after the other: every byte, and none beside.
#include "cuda/device/host_copier.h"

#include <cstddef>
#include <vector>

#include "test.h"

namespace packhorse::cuda {

TEST(host_copier) {
  for (const int threads : {1, 2, 4}) {
    HostCopier copier(threads);
    constexpr size_t kMost = (size_t{3} << 20) + 77;
    std::vector<unsigned char> from(kMost + 2);
    for (size_t round = 0; round < 40; ++round) {
      // Sizes below and above those at which helpers wake, most of them odd.
      const size_t bytes = round % 4 == 0 ? round : kMost - round * 31'337;
      for (size_t i = 0; i < from.size(); i += 61) from[i] = static_cast<unsigned char>(i + round);
      std::vector<unsigned char> to(bytes + 2, 0xee);
      std::vector<unsigned char> expected = to;
      for (size_t i = 0; i < bytes; ++i) expected[i + 1] = from[i];
      copier.copy(to.data() + 1, from.data(), bytes);
      CHECK(to == expected);
    }
  }
}

}  // namespace packhorse::cuda
