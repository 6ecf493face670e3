#include "packhorse/packed_tokens.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

const PackedLimits kLimits{.max_tokens = 8,
                           .max_sequences = 4,
                           .max_seqlen = 5,
                           .vocab_size = 100,
                           .type_vocab_size = 2,
                           .num_positions = 6};

struct Arrays {
  std::vector<int32_t> ids = {};
  std::vector<int32_t> cu_seqlens = {};
  std::vector<int32_t> type_ids = {};
  std::vector<int32_t> position_ids = {};
};

void run(const Arrays& arrays) {
  check(PackedTokens{arrays.ids, arrays.cu_seqlens, arrays.type_ids, arrays.position_ids}, kLimits);
}

TEST(packed_tokens_accepts_legal_batches) {
  run({.ids = {}, .cu_seqlens = {0}});
  run({.ids = {}, .cu_seqlens = {0, 0, 0}});
  run({.ids = {7}, .cu_seqlens = {0, 0, 1, 1}});
  run({.ids = {0, 99, 1, 2, 3, 4, 5, 6}, .cu_seqlens = {0, 5, 8, 8, 8}});
  run({.ids = {1, 2, 3}, .cu_seqlens = {0, 3}, .type_ids = {0, 1, 0}, .position_ids = {5, 0, 5}});
}

TEST(packed_tokens_sizes) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const std::vector<int32_t> offsets = {0, 1, 1, 4};
  const PackedTokens batch{ids, offsets, {}, {}};
  CHECK(batch.num_tokens() == 4);
  CHECK(batch.num_sequences() == 3);
  CHECK(batch.max_seqlen() == 3);
  const std::vector<int32_t> none = {0};
  CHECK((PackedTokens{{}, none, {}, {}}.max_seqlen() == 0));
}

TEST(packed_tokens_refuses_bad_offsets) {
  CHECK_THROWS_WITH(run({.ids = {}, .cu_seqlens = {}}), "cu_seqlens is empty");
  CHECK_THROWS_WITH(run({.ids = {1}, .cu_seqlens = {1, 1}}), "cu_seqlens[0] = 1; expected 0");
  CHECK_THROWS_WITH(run({.ids = {1, 2}, .cu_seqlens = {0, 2, 1, 2}}),
                    "cu_seqlens decreases: cu_seqlens[2] = 1 after 2");
  CHECK_THROWS_WITH(run({.ids = {1, 2}, .cu_seqlens = {0, -1, 2}}), "cu_seqlens[1] = -1 after 0");
  CHECK_THROWS_WITH(run({.ids = {1, 2}, .cu_seqlens = {0, 1}}),
                    "cu_seqlens[1] = 1, but there are 2 tokens");
  CHECK_THROWS_WITH(run({.ids = {1}, .cu_seqlens = {0, 2}}), "but there are 1 tokens");
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  CHECK_THROWS_WITH(run({.ids = {1}, .cu_seqlens = {0, kMax, kMin, 1}}), "cu_seqlens decreases");
}

TEST(packed_tokens_refuses_what_exceeds_the_plan) {
  CHECK_THROWS_WITH(run({.ids = std::vector<int32_t>(9), .cu_seqlens = {0, 4, 9}}),
                    "has 9 tokens; the session is planned for max_tokens = 8");
  CHECK_THROWS_WITH(run({.ids = {}, .cu_seqlens = {0, 0, 0, 0, 0, 0}}),
                    "has 5 sequences; the session is planned for max_sequences = 4");
  CHECK_THROWS_WITH(run({.ids = std::vector<int32_t>(7), .cu_seqlens = {0, 1, 7}}),
                    "sequence 1 has 6 tokens; the model takes max_seqlen = 5");
}

TEST(packed_tokens_refuses_sizes_that_offsets_cannot_count) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const PackedLimits all{.max_tokens = int64_t{1} << 40, .max_sequences = int64_t{1} << 40};
  check_capacity(kMost, kMost - 1, all);
  for (const int64_t bad : {int64_t{-1}, kMost + 1}) {
    CHECK_THROWS_WITH(check_capacity(bad, 1, all), "expected 0 to 2147483647 tokens");
    CHECK_THROWS_WITH(check_capacity(1, bad, all), "fewer than 2147483647 sequences");
  }
}

TEST(packed_tokens_given_positions_do_not_lengthen_sequences) {
  CHECK_THROWS_WITH(run({.ids = std::vector<int32_t>(6),
                         .cu_seqlens = {0, 6},
                         .position_ids = {0, 1, 2, 3, 4, 5}}),
                    "max_seqlen = 5");
}

TEST(packed_tokens_refuses_values_out_of_range) {
  CHECK_THROWS_WITH(run({.ids = {1, 100}, .cu_seqlens = {0, 2}}),
                    "ids[1] = 100 is out of range; expected 0 <= value < vocab_size = 100");
  CHECK_THROWS_WITH(run({.ids = {1, 2, -5}, .cu_seqlens = {0, 3}}), "ids[2] = -5");
  CHECK_THROWS_WITH(run({.ids = {1, 2}, .cu_seqlens = {0, 2}, .type_ids = {0, 2}}),
                    "type_ids[1] = 2 is out of range; expected 0 <= value < type_vocab_size = 2");
  CHECK_THROWS_WITH(run({.ids = {1, 2}, .cu_seqlens = {0, 2}, .position_ids = {6, 0}}),
                    "position_ids[0] = 6 is out of range; expected 0 <= value < num_positions = 6");
  CHECK_THROWS_WITH(run({.ids = {1, 2}, .cu_seqlens = {0, 2}, .type_ids = {0}}),
                    "type_ids holds 1 values; expected 2");
  CHECK_THROWS_WITH(run({.ids = {1}, .cu_seqlens = {0, 1}, .position_ids = {0, 1}}),
                    "position_ids holds 2 values; expected 1");
}

}  // namespace
}  // namespace packhorse
