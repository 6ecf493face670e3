// The messages about a batch that only the device has seen are those of `check` for the same batch.
#include "ops/device_io.h"

#include <string>
#include <vector>

#include "packhorse/error.h"
#include "test.h"

using namespace packhorse;

namespace {

const PackedLimits kLimits = {.max_tokens = 100,
                              .max_sequences = 8,
                              .max_seqlen = 5,
                              .vocab_size = 50,
                              .type_vocab_size = 2,
                              .num_positions = 9};

template <class Work>
std::string message_of(Work work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    return error.message();
  }
  return "";
}

struct Case {
  std::vector<int32_t> ids, cu_seqlens, type_ids, position_ids;
  InputFinding finding;
};

}  // namespace

TEST(findings_read_as_checks_do) {
  const Case cases[] = {
      {{1, 50, 2}, {0, 3}, {}, {}, {7, InputFinding::kIds, 1, 50, 0}},
      {{1, -7, 2}, {0, 3}, {}, {}, {7, InputFinding::kIds, 1, -7, 0}},
      {{1, 1, 2}, {0, 3}, {0, 0, 2}, {}, {7, InputFinding::kTypeIds, 2, 2, 0}},
      {{1, 1, 2}, {0, 3}, {}, {9, 0, 1}, {7, InputFinding::kPositionIds, 0, 9, 0}},
      {{1, 1, 2}, {1, 3}, {}, {}, {7, InputFinding::kFirstOffset, 0, 1, 0}},
      {{1, 1, 2}, {0, 2, 1, 3}, {}, {}, {7, InputFinding::kDecreasingOffset, 2, 1, 2}},
      {{1, 1, 2}, {0, 2}, {}, {}, {7, InputFinding::kLastOffset, 1, 2, 0}},
      {{1, 1, 2, 4, 5, 6, 7}, {0, 1, 7}, {}, {}, {7, InputFinding::kLength, 2, 7, 1}},
  };
  for (const Case& c : cases) {
    const PackedTokens batch = {c.ids, c.cu_seqlens, c.type_ids, c.position_ids};
    const auto tokens = static_cast<int64_t>(c.ids.size());
    const std::string expected = message_of([&] { check(batch, kLimits); });
    CHECK(!expected.empty());
    CHECK(message_of([&] { check_finding(c.finding, 7, tokens, kLimits); }) == expected);
    CHECK(message_of([&] { check_finding(c.finding, 8, tokens, kLimits); }).empty());
    CHECK(message_of([&] { check_finding({}, 0, tokens, kLimits); }).empty());
  }
}
