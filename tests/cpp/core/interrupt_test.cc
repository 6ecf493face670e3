// Runs can be interrupted between their layers.
#include "packhorse/interrupt.h"

#include <atomic>
#include <vector>

#include "packhorse/session.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;

namespace {

std::atomic<int> asked;
std::atomic<int> end_at;  // number of the query that returns true; 0: none

bool count() { return ++asked == end_at; }

class ScopedQuery {
 public:
  explicit ScopedQuery(int last) {
    asked = 0;
    end_at = last;
    set_interrupt_query(count);
  }
  ~ScopedQuery() { set_interrupt_query(nullptr); }
};

std::vector<float> hidden(Session& session) {
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const std::vector<int32_t> cu_seqlens = {0, 1, 4};
  std::vector<float> result(4 * 24);
  RunOutputs outputs;
  outputs.hidden = result.data();
  session.run({.ids = ids, .cu_seqlens = cu_seqlens, .type_ids = {}, .position_ids = {}}, outputs);
  return result;
}

}  // namespace

TEST(interrupt_ends_a_run_between_layers) {
  const test::TinyWeights weights;
  SessionOptions options;
  options.max_tokens = 16;
  options.max_sequences = 2;
  options.threads = 2;
  const auto session = Session::load(test::tiny_spec(), *weights.source(), options);
  const std::vector<float> expected = hidden(*session);
  for (const int layer : {1, 2}) {
    const ScopedQuery query(layer);
    CHECK_THROWS_AS(Interrupted, hidden(*session), "ended before it was done");
    CHECK(asked == layer);
    CHECK(hidden(*session) == expected);  // the session still works
  }
  {
    const ScopedQuery query(0);
    CHECK(hidden(*session) == expected);
    CHECK(asked == 2);  // one query for each layer
  }
  hidden(*session);
  CHECK(asked == 2);
}
