#include "generation/sampling/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace packhorse {
namespace {

// Takes a score out of the competition and keeps the order of such scores, roughly.
constexpr float kFarDown = -1e9f;

int64_t num_candidates(int64_t num_beams, size_t num_stop_ids) {
  return std::max<int64_t>(2, 1 + static_cast<int64_t>(num_stop_ids)) * num_beams;
}

}  // namespace

int64_t candidates_per_beam(int64_t num_beams, size_t num_stop_ids, int64_t vocab_size) {
  return std::min(num_candidates(num_beams, num_stop_ids), vocab_size);
}

BeamSearch::BeamSearch(const BeamSettings& settings) : settings_(settings) {
  const auto beams = static_cast<size_t>(settings.num_beams);
  next_.reserve(beams);
  if (settings.patience > 0) return;
  finished_.resize(beams);
  for (Hypothesis& place : finished_) place.score = kFarDown;
}

float BeamSearch::divisor_of(int64_t length) const {
  return static_cast<float>(
      std::pow(static_cast<double>(length), double{settings_.length_penalty}));
}
float BeamSearch::scaled(float score, int64_t length) const { return score / divisor_of(length); }

bool BeamSearch::all_finished() const {
  return std::ranges::none_of(
      finished_, [](const Hypothesis& place) { return place.reason == FinishReason::kNone; });
}

bool BeamSearch::advance(std::span<const BeamOffer> beams) {
  ++num_new_;
  choose_candidates(beams);
  if (settings_.patience > 0) return advance_patiently(beams);
  choose_running();
  choose_finished(beams);
  may_improve_ = may_improve_ && may_improve();
  const bool enough = all_finished() && settings_.early_stopping == EarlyStopping::kTrue;
  const bool all_end = std::ranges::all_of(candidates_, &Candidate::ends);
  return may_improve_ && !enough && !all_end;
}

void BeamSearch::choose_candidates(std::span<const BeamOffer> beams) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    if (a.beam.score != b.beam.score) return a.beam.score > b.beam.score;
    return std::pair(a.beam.parent, a.beam.token.id) < std::pair(b.beam.parent, b.beam.token.id);
  };
  const auto most =
      static_cast<size_t>(num_candidates(settings_.num_beams, settings_.stop_ids.size()));
  candidates_.clear();
  for (size_t beam = 0; beam < beams.size(); ++beam) {
    const float score = next_.empty() ? 0 : next_[beam].score;
    for (const TokenLogprob& token : beams[beam].candidates) {
      Candidate candidate;
      candidate.beam = {static_cast<int32_t>(beam), token, token.logprob + score};
      const bool full = candidates_.size() == most;
      if (full && !better(candidate, candidates_.back())) continue;
      if (full) candidates_.pop_back();
      candidates_.insert(std::ranges::upper_bound(candidates_, candidate, better), candidate);
    }
  }
  for (Candidate& candidate : candidates_) {
    const bool stops =
        std::ranges::find(settings_.stop_ids, candidate.beam.token.id) != settings_.stop_ids.end();
    candidate.ends = stops || num_new_ >= settings_.max_new_tokens;
    candidate.running_score = candidate.beam.score + (candidate.ends ? kFarDown : 0);
  }
}

void BeamSearch::choose_running() {
  const std::greater<> larger;
  const auto take = [this](const Candidate& candidate) {
    if (next_.size() == finished_.size()) return;
    next_.push_back(candidate.beam);
    next_.back().score = candidate.running_score;
  };
  next_.clear();
  // They are in order as they are in most steps, in which none ends.
  if (std::ranges::is_sorted(candidates_, larger, &Candidate::running_score)) {
    std::ranges::for_each(candidates_, take);
    return;
  }
  std::vector<Candidate> order = candidates_;
  std::ranges::stable_sort(order, larger, &Candidate::running_score);
  std::ranges::for_each(order, take);
}

void BeamSearch::choose_finished(std::span<const BeamOffer> beams) {
  // In most steps none ends that could take a place; one that goes on is no better than a free one.
  const auto first = std::span(candidates_).first(std::min(candidates_.size(), finished_.size()));
  if (std::ranges::none_of(first, &Candidate::ends) && finished_.back().score >= kFarDown) return;
  const bool full = all_finished() && settings_.early_stopping == EarlyStopping::kTrue;
  const float divisor = divisor_of(num_new_);
  std::vector<std::pair<float, size_t>> order;  // score; place, or number of places + candidate
  for (const Hypothesis& place : finished_) order.emplace_back(place.score, order.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    float score = candidate.beam.score / divisor;
    if (full) score += kFarDown;
    if (!may_improve_) score += kFarDown;
    // Those behind the first num_beams are there only so that enough go on.
    if (!candidate.ends || i >= finished_.size()) score += kFarDown;
    order.emplace_back(score, order.size());
  }
  std::ranges::stable_sort(order, std::greater<>(), &std::pair<float, size_t>::first);
  std::vector<Hypothesis> best;
  for (size_t i = 0; i < finished_.size(); ++i) {
    const auto [score, from] = order[i];
    if (from < finished_.size()) {
      best.push_back(std::move(finished_[from]));
      continue;
    }
    const size_t number = from - finished_.size();
    const Candidate& candidate = candidates_[number];
    Hypothesis& taken = best.emplace_back();
    if (candidate.ends && number < finished_.size()) taken = hypothesis_of(candidate, beams);
    taken.score = score;  // else still a free place
  }
  finished_ = std::move(best);
}

Hypothesis BeamSearch::hypothesis_of(const Candidate& candidate,
                                     std::span<const BeamOffer> beams) const {
  const BeamOffer& parent = beams[size_t(candidate.beam.parent)];
  Hypothesis taken;
  taken.ids.assign(parent.ids.begin(), parent.ids.end());
  taken.ids.push_back(candidate.beam.token.id);
  taken.logprobs.assign(parent.logprobs.begin(), parent.logprobs.end());
  taken.logprobs.push_back(candidate.beam.token.logprob);
  const bool stops =
      std::ranges::find(settings_.stop_ids, candidate.beam.token.id) != settings_.stop_ids.end();
  taken.reason = stops ? FinishReason::kStop : FinishReason::kLength;
  return taken;
}

bool BeamSearch::advance_patiently(std::span<const BeamOffer> beams) {
  const auto wanted = static_cast<size_t>(settings_.num_beams);
  const auto most = static_cast<size_t>(
      std::max(1L, std::lround(double{settings_.patience} * static_cast<double>(wanted))));
  next_.clear();
  for (const Candidate& candidate : candidates_) {
    if (next_.size() == wanted) break;
    if (std::isinf(candidate.beam.score) && !next_.empty()) break;  // no token may follow
    const bool stops =
        std::ranges::find(settings_.stop_ids, candidate.beam.token.id) != settings_.stop_ids.end();
    if (!stops) {
      next_.push_back(candidate.beam);
    } else if (finished_.size() < most) {
      Hypothesis& found = finished_.emplace_back(hypothesis_of(candidate, beams));
      found.score = scaled(candidate.beam.score, std::max<int64_t>(1, num_new_ - 1));
    }
  }
  const bool at_end = num_new_ >= settings_.max_new_tokens;
  if (at_end && finished_.size() < wanted) {
    // Beams that go on take the places that are left, best first, as if they ended here.
    for (const NextBeam& beam : next_) {
      if (finished_.size() >= wanted) break;
      const Candidate candidate = {.beam = beam, .ends = true};
      Hypothesis& found = finished_.emplace_back(hypothesis_of(candidate, beams));
      found.score = scaled(beam.score, num_new_);
    }
  }
  // A search needs as many beams as there were: the best stands for those that are missing.
  const bool dead = next_.empty();
  while (!next_.empty() && next_.size() < wanted) {
    next_.push_back(next_.front());
    next_.back().token.logprob = -INFINITY;
    next_.back().score = -INFINITY;
  }
  return finished_.size() < most && !at_end && !dead;
}

bool BeamSearch::may_improve() const {
  const bool by_length =
      settings_.early_stopping == EarlyStopping::kNever && settings_.length_penalty > 0;
  const float best = scaled(next_[0].score, by_length ? settings_.max_new_tokens : num_new_);
  float worst = finished_[0].score;
  for (const Hypothesis& place : finished_) worst = std::min(worst, place.score);
  return best > (all_finished() ? worst : kFarDown);
}

std::vector<Hypothesis> BeamSearch::finish(std::span<const BeamOffer> beams,
                                           FinishReason reason) const {
  std::vector<Hypothesis> results;
  for (const Hypothesis& place : finished_) {
    if (place.reason != FinishReason::kNone) results.push_back(place);
  }
  const auto places = static_cast<size_t>(settings_.num_beams);
  for (size_t beam = 0; beam < beams.size() && results.size() < places; ++beam) {
    if (beams[beam].ids.empty()) continue;
    Hypothesis& broken_off = results.emplace_back();
    broken_off.ids.assign(beams[beam].ids.begin(), beams[beam].ids.end());
    broken_off.logprobs.assign(beams[beam].logprobs.begin(), beams[beam].logprobs.end());
    broken_off.score = scaled(next_[beam].score, num_new_);
    broken_off.reason = reason;
  }
  std::ranges::stable_sort(results, std::greater<>(), &Hypothesis::score);
  if (results.size() > places) results.resize(places);
  return results;
}

}  // namespace packhorse
