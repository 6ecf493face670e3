#include "packhorse/packed_patches.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

const PatchLimits kLimits{
    .max_tokens = 10, .max_sequences = 3, .max_seqlen = 8, .columns = 2, .prefix = 2};

void run(int64_t patches, const std::vector<int32_t>& grids, int64_t columns = 2) {
  const std::vector<float> features(static_cast<size_t>(patches * columns));
  check(PackedPatches{features, columns, grids}, kLimits);
}

TEST(packed_patches_accepts_legal_batches) {
  run(0, {});
  run(0, {0, 0, 0, 7, 5, 0});
  run(6, {2, 3});
  run(4, {1, 1, 0, 0, 3, 1});
}

TEST(packed_patches_counts_the_prefix_of_images_that_have_patches) {
  CHECK(tokens_of(2, 3, 5) == 11);
  CHECK(tokens_of(0, 3, 5) == 0);
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  CHECK(tokens_of(kMost, kMost, 1) == int64_t{kMost} * kMost + 1);
}

TEST(packed_patches_refuses_what_does_not_fit) {
  CHECK_THROWS_WITH(run(1, {1, 1}, 3), "features has 3 columns; the model takes 2");
  CHECK_THROWS_WITH(run(1, {1, 1, 0, 0, 0, 0, 0, 0}), "max_sequences = 3");
  CHECK_THROWS_WITH(run(1, {0, 0, -1, -1}), "grids[1] is -1 x -1");
  CHECK_THROWS_WITH(run(1, {1 << 21, 1}), "expected 0 to 1048576 rows and columns");
  CHECK_THROWS_WITH(run(7, {7, 1}), "grids[0] is 7 x 1, which makes 9 tokens");
  CHECK_THROWS_WITH(run(5, {2, 3}), "features has 5 rows, but the grids have 6 patches");
  CHECK_THROWS_WITH(run(8, {4, 1, 4, 1}), "the batch has 12 tokens");
}

}  // namespace
}  // namespace packhorse
