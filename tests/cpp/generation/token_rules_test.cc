// Effects that the settings of a request have on tokens at a place of its text.
#include "generation/sampling/token_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "fake_runner.h"
#include "generation/generation_session.h"
#include "generation/sampling/sampling_checks.h"
#include "test.h"

using namespace packhorse;

namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kMaxSize = 10;

// The tokens that end a text unless a test says otherwise; effects refer to them.
const Ids kStopIds = {2};

// The effects on the token after `tokens`, of which the first `prompt` are the prompt.
RuleEffects effects_at(const Sampling& sampling, const Ids& tokens, size_t prompt,
                       const Ids& stop_ids = kStopIds) {
  RuleEffects effects;
  TokenRules(sampling, stop_ids, int64_t(prompt), kMaxSize)
      .apply(tokens, int64_t(tokens.size() - prompt), effects);
  return effects;
}

Ids sorted(Ids ids) {
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

TEST(rules_ban_repeated_ngrams) {
  Sampling sampling;
  sampling.no_repeat_ngram_size = 2;
  CHECK(effects_at(sampling, {5}, 1).banned.empty());
  CHECK(effects_at(sampling, {5, 6, 7, 5}, 1).banned == Ids({6}));
  CHECK(sorted(effects_at(sampling, {5, 6, 5, 5}, 1).banned) == Ids({5, 6}));
  sampling.no_repeat_ngram_size = 3;
  CHECK(effects_at(sampling, {1, 2, 3, 9, 1, 2}, 2).banned == Ids({3}));
  CHECK(effects_at(sampling, {1, 2}, 2).banned.empty());
  CHECK(effects_at(sampling, {4, 4, 4}, 2).banned == Ids({4}));
  sampling.no_repeat_ngram_size = 1;
  CHECK(effects_at(sampling, {8, 9}, 2).banned == Ids({8, 9}));
}

TEST(rules_ban_bad_words) {
  Sampling sampling;
  sampling.bad_words_ids = {{7}, {2}, {5, 6}, {3, 5, 9}};
  CHECK(TokenRules(sampling, {}, 1, kMaxSize).read_tokens());
  CHECK(effects_at(sampling, {1}, 1).banned == Ids({7}));  // 2 ends the text
  CHECK(effects_at(sampling, {5}, 1).banned == Ids({7, 6}));
  CHECK(effects_at(sampling, {3, 5}, 1).banned == Ids({7, 6, 9}));
  sampling.bad_words_ids = {{7}};
  CHECK(!TokenRules(sampling, {}, 1, kMaxSize).read_tokens());
}

TEST(rules_add_biases_of_sequences) {
  Sampling sampling;
  sampling.logit_bias = {{4, 1.0f}};
  sampling.sequence_bias = {{{4}, 2.0f}, {{3, 4}, -INFINITY}, {{3, 8}, 0.5f}};
  const std::vector<TokenBias> alone = {{4, 3.0f}};
  CHECK(effects_at(sampling, {1}, 1).biases == alone);
  const std::vector<TokenBias> after = {{4, -INFINITY}, {8, 0.5f}};
  CHECK(effects_at(sampling, {1, 3}, 1).biases == after);
}

TEST(rules_know_the_place) {
  Sampling sampling;
  sampling.min_new_tokens = 2;
  sampling.suppress_tokens = {11};
  sampling.begin_suppress_tokens = {12};
  sampling.forced_bos_token_id = 13;
  sampling.forced_eos_token_id = {2, 14};
  sampling.exponential_decay_length_penalty = {.start = 3, .factor = 2};
  const TokenRules rules(sampling, {}, 1, kMaxSize);
  CHECK(rules.any() && !rules.read_tokens());
  Ids tokens = {1};
  const RuleEffects begin = effects_at(sampling, tokens, 1);
  CHECK(Ids(begin.forced.begin(), begin.forced.end()) == Ids({13}));
  CHECK(begin.banned == Ids({2}) && begin.suppressed == Ids({11}) && begin.boosted.empty());
  tokens.push_back(13);  // the first token that is not forced
  CHECK(effects_at(sampling, tokens, 1).suppressed == Ids({11, 12}));
  CHECK(effects_at(sampling, tokens, 1).banned == Ids({2}));
  tokens.push_back(20);
  CHECK(effects_at(sampling, tokens, 1).banned.empty());
  tokens.insert(tokens.end(), {20, 20, 20});
  const RuleEffects later = effects_at(sampling, tokens, 1);
  CHECK(later.boost == 3 && Ids(later.boosted.begin(), later.boosted.end()) == Ids({2}));
  CHECK(later.forced.empty());
  tokens.resize(kMaxSize - 1, 20);
  CHECK(effects_at(sampling, tokens, 1).forced.size() == 2);
  // After a longer prompt the first token is not forced, and begin_suppress_tokens hold for it.
  const RuleEffects longer = effects_at(sampling, {1, 1}, 2);
  CHECK(longer.forced.empty() && longer.suppressed == Ids({11, 12}));
  CHECK(!TokenRules({}, {}, 1, kMaxSize).any());
}

TEST(rules_write_masks) {
  RuleEffects effects;
  effects.banned = {1, 33};
  effects.suppressed = {2};
  std::array<uint32_t, 2> words;
  CHECK(!write_allowed(effects, {}, words));
  CHECK(words[0] == ~0b110u && words[1] == ~0b10u);
  const std::array<uint32_t, 2> mask = {0b1111u, 0b11u};
  CHECK(!write_allowed(effects, mask, words));
  CHECK(words[0] == 0b1001u && words[1] == 0b01u);
  // A token that is forced may be banned, but not suppressed; a mask comes first.
  const Ids forced = {1, 2, 40};
  effects.forced = forced;
  CHECK(write_allowed(effects, {}, words));
  CHECK(words[0] == 0b10u && words[1] == 0b100000000u);
  CHECK(write_allowed(effects, mask, words));
  CHECK(words[0] == 0b10u && words[1] == 0u);
  const Ids outside = {50};
  effects.forced = outside;
  CHECK(!write_allowed(effects, mask, words));
  CHECK(words[0] == 0b1001u && words[1] == 0b01u);
}

TEST(rules_are_checked) {
  const RunnerLimits limits{40, 100, 10, 48, 8};
  const auto refuses = [&](auto change, const std::string& message) {
    Sampling sampling;
    change(sampling);
    CHECK_THROWS_WITH(check_sampling(sampling, 1, limits), message);
  };
  refuses([](Sampling& s) { s.suppress_tokens = {40}; },
          "an id of suppress_tokens is 40, expected");
  refuses([](Sampling& s) { s.begin_suppress_tokens = {-1}; }, "begin_suppress_tokens is -1");
  refuses([](Sampling& s) { s.bad_words_ids = {{}}; }, "a sequence of bad_words_ids is empty");
  refuses([](Sampling& s) { s.bad_words_ids = {{3, 40}}; }, "token of a sequence of bad_words_ids");
  refuses([](Sampling& s) { s.sequence_bias = {{{}, 1}}; }, "a sequence of sequence_bias is empty");
  refuses([](Sampling& s) { s.sequence_bias = {{{3}, NAN}}; }, "bias of sequence_bias is nan");
  refuses([](Sampling& s) { s.no_repeat_ngram_size = -1; }, "no_repeat_ngram_size is -1");
  refuses([](Sampling& s) { s.min_new_tokens = -1; }, "min_new_tokens is -1");
  refuses([](Sampling& s) { s.forced_bos_token_id = 40; }, "forced_bos_token_id is 40");
  refuses([](Sampling& s) { s.forced_eos_token_id = {40}; }, "id of forced_eos_token_id is 40");
  refuses([](Sampling& s) { s.exponential_decay_length_penalty = {-1, 2}; }, "start from 0 on");
  refuses([](Sampling& s) { s.exponential_decay_length_penalty = {1, 0}; }, "a factor above 0");
  refuses([](Sampling& s) { s.sequence_bias.assign(1025, {{3}, 1}); }, "at most 1024");
}

TEST(generation_stops_where_no_token_is_left) {
  const RunnerLimits limits{40, 100, 10, 48, 8};
  const auto session =
      make_generation_session(std::make_unique<test::FakeRunner>(limits), GenerationOptions{});
  Sampling sampling;
  sampling.max_new_tokens = 5;
  sampling.n = 2;
  sampling.allowed_ids = {3, 4};
  sampling.no_repeat_ngram_size = 1;
  const auto few = session->generate(std::vector<Ids>{{1}}, sampling)[0];
  for (const GeneratedSequence& found : few) {
    CHECK(sorted(found.ids) == Ids({3, 4}) && found.finish_reason == FinishReason::kStop);
  }
  sampling = Sampling();
  sampling.max_new_tokens = 5;
  for (int32_t token = 0; token < 40; ++token) sampling.logit_bias.emplace_back(token, -INFINITY);
  const auto none = session->generate(std::vector<Ids>{{1}}, sampling)[0][0];
  CHECK(none.ids.empty() && none.finish_reason == FinishReason::kStop);
}
