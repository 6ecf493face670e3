// Beam search against transformers' own, for a model that is a function of the last token and the
// length: the algorithm alone, and in the engine with its pages.
#include "generation/sampling/beam_search.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "fake_runner.h"
#include "test.h"

using namespace packhorse;
using packhorse::test::FakeModel;
using packhorse::test::mix;

namespace {

constexpr int64_t kVocab = 12;
constexpr int64_t kPrompt = 2;
constexpr int32_t kLastOfPrompt = 3;

// Constants without constructors: vectors would take the compiler twenty seconds.
struct Expected {
  std::initializer_list<int32_t> ids;
  float score;
};

struct Golden {
  uint64_t seed;
  int64_t num_beams;
  float length_penalty;
  EarlyStopping early_stopping;
  int64_t max_new_tokens;
  std::initializer_list<int32_t> stop_ids;
  std::initializer_list<Expected> hypotheses;
};

constexpr Golden kGoldens[] = {
#include "beam_search_golden.inc"
};

std::vector<float> logprobs_after(uint64_t seed, int32_t last, int64_t length) {
  const uint64_t state = mix(mix(seed, uint64_t(last)), uint64_t(length));
  std::vector<float> logits(static_cast<size_t>(kVocab));
  double total = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    logits[t] = static_cast<float>(static_cast<double>(mix(state, t) >> 40) * 0x1p-24 * 3);
    total += std::exp(double{logits[t]});
  }
  for (float& logit : logits) logit -= static_cast<float>(std::log(total));
  return logits;
}

struct Beam {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<TokenLogprob> top;
};

std::vector<BeamOffer> offers_of(const Golden& golden, std::vector<Beam>& beams) {
  std::vector<BeamOffer> offers;
  for (Beam& beam : beams) {
    const int32_t last = beam.ids.empty() ? kLastOfPrompt : beam.ids.back();
    beam.top.resize(size_t(candidates_per_beam(golden.num_beams, golden.stop_ids.size(), kVocab)));
    FakeModel::take_top(logprobs_after(golden.seed, last, kPrompt + int64_t(beam.ids.size())),
                        beam.top);
    offers.push_back({beam.top, beam.ids, beam.logprobs});
  }
  return offers;
}

BeamSettings settings_of(const Golden& golden) {
  return {golden.num_beams, golden.length_penalty, golden.early_stopping, golden.max_new_tokens,
          std::span<const int32_t>(golden.stop_ids)};
}

std::vector<Beam> go_on(const BeamSearch& search, const std::vector<Beam>& beams) {
  std::vector<Beam> next;
  for (const NextBeam& beam : search.next()) {
    next.push_back(beams[size_t(beam.parent)]);
    next.back().ids.push_back(beam.token.id);
    next.back().logprobs.push_back(beam.token.logprob);
  }
  return next;
}

}  // namespace

TEST(beam_search_equals_transformers) {
  CHECK(std::size(kGoldens) == 144);
  for (const Golden& golden : kGoldens) {
    BeamSearch search(settings_of(golden));
    std::vector<Beam> beams(1);
    int64_t steps = 1;
    for (; search.advance(offers_of(golden, beams)); ++steps) beams = go_on(search, beams);
    CHECK(steps <= golden.max_new_tokens);
    const std::vector<Hypothesis> found = search.finish();
    CHECK(found.size() == golden.hypotheses.size());
    for (size_t i = 0; i < std::min(found.size(), golden.hypotheses.size()); ++i) {
      const Expected& expected = golden.hypotheses.begin()[i];
      CHECK(std::ranges::equal(found[i].ids, expected.ids));
      CHECK(std::abs(found[i].score - expected.score) < 1e-5f * (1 + std::abs(expected.score)));
      CHECK(found[i].logprobs.size() == found[i].ids.size());
      const bool stops =
          std::ranges::find(golden.stop_ids, found[i].ids.back()) != golden.stop_ids.end();
      CHECK(found[i].reason == (stops ? FinishReason::kStop : FinishReason::kLength));
    }
  }
}

TEST(beam_search_broken_off_gives_what_runs) {
  const Golden golden{3, 3, 1, EarlyStopping::kFalse, 50, {0}, {}};
  BeamSearch search(settings_of(golden));
  std::vector<Beam> beams(1);
  CHECK(search.finish(offers_of(golden, beams), FinishReason::kCancelled).empty());
  for (int step = 0; step < 2; ++step) {
    CHECK(search.advance(offers_of(golden, beams)));
    beams = go_on(search, beams);
  }
  const std::vector<BeamOffer> offers = offers_of(golden, beams);
  const std::vector<Hypothesis> found = search.finish(offers, FinishReason::kCancelled);
  CHECK(found.size() == 3);
  for (size_t i = 1; i < found.size(); ++i) CHECK(found[i - 1].score >= found[i].score);
  CHECK(std::ranges::any_of(found, [](const Hypothesis& hypothesis) {
    return hypothesis.reason == FinishReason::kCancelled && hypothesis.ids.size() == 2;
  }));
}
