#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/format.h"
#include "packhorse/audio.h"
#include "packhorse/error.h"

namespace packhorse::audio {
namespace {

constexpr int64_t kMostWidth = 63;  // TokenTimesArgs::filter_width

void check(const TokenTimesArgs& args) {
  const bool fits = args.heads > 0 && args.tokens > 0 && args.frames > 0 &&
                    std::ssize(args.weights) / args.heads / args.tokens == args.frames &&
                    std::ssize(args.weights) == args.heads * args.tokens * args.frames;
  if (!fits) {
    throw InvalidArgument(concat("there are ", args.weights.size(), " weights, expected ",
                                 args.heads, " heads of ", args.tokens, " tokens and ", args.frames,
                                 " frames, one at least of each"));
  }
  if (args.first < 0 || args.first >= args.end || args.end > args.tokens) {
    throw InvalidArgument(concat("the tokens are ", args.first, " to ", args.end,
                                 ", expected one at least of ", args.tokens));
  }
  if (args.filter_width < 1 || args.filter_width > kMostWidth || args.filter_width % 2 == 0) {
    throw InvalidArgument(concat("filter_width is ", args.filter_width,
                                 ", expected an odd number from 1 to ", kMostWidth));
  }
}

// Rows of one head, normalised over its tokens frame by frame.
class NormalizedHead {
 public:
  NormalizedHead(const TokenTimesArgs& args, int64_t head)
      : rows_(args.weights.subspan(static_cast<size_t>(head * args.tokens * args.frames))),
        frames_(static_cast<size_t>(args.frames)),
        means_(frames_),
        factors_(frames_) {
    const auto count = static_cast<double>(args.tokens);
    const auto for_all = [&](const auto& body) {
      for (int64_t token = 0; token < args.tokens; ++token) {
        const std::span<const float> weights = row(token);
        for (size_t frame = 0; frame < frames_; ++frame) body(frame, weights[frame]);
      }
    };
    for_all([&](size_t frame, float weight) { means_[frame] += static_cast<double>(weight); });
    for (double& mean : means_) mean /= count;
    for_all([&](size_t frame, float weight) {
      const double difference = static_cast<double>(weight) - means_[frame];
      factors_[frame] += difference * difference;
    });
    for (double& factor : factors_) factor = factor > 0 ? 1 / std::sqrt(factor / count) : 0;
  }

  void read(int64_t token, std::span<float> out) const {
    const std::span<const float> weights = row(token);
    for (size_t frame = 0; frame < frames_; ++frame) {
      const double difference = static_cast<double>(weights[frame]) - means_[frame];
      out[frame] = static_cast<float>(difference * factors_[frame]);
    }
  }

 private:
  std::span<const float> row(int64_t token) const {
    return rows_.subspan(static_cast<size_t>(token) * frames_, frames_);
  }

  std::span<const float> rows_;
  size_t frames_;
  std::vector<double> means_;    // [frames]
  std::vector<double> factors_;  // [frames] 1 / standard deviation
};

// Adds the median of `width` numbers around each to `sums`. At both ends the numbers go on
// backwards; where there are too few for that, they are taken as they are.
void add_medians(std::span<const float> row, int64_t width, std::span<double> sums) {
  const int64_t size = std::ssize(row);
  const int64_t half = size > width / 2 ? width / 2 : 0;
  std::array<float, kMostWidth> around;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = -half; j <= half; ++j) {
      const int64_t place = std::abs(i + j);
      around[static_cast<size_t>(j + half)] =
          row[static_cast<size_t>(place < size ? place : 2 * (size - 1) - place)];
    }
    const auto middle = around.begin() + half;
    std::nth_element(around.begin(), middle, middle + half + 1);
    sums[static_cast<size_t>(i)] += static_cast<double>(*middle);
  }
}

enum class Step : uint8_t { kBoth, kToken, kFrame };

// Costs of the cheapest paths to each token and frame, and the last step of each.
std::vector<Step> find_steps(const std::vector<float>& costs, size_t tokens, size_t frames) {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  std::vector<Step> steps(tokens * frames, Step::kFrame);
  std::vector<float> before(frames + 1,
                            kNever);  // costs of the token before; [0]: before all frames
  std::vector<float> here(frames + 1);
  before[0] = 0;
  for (size_t token = 0; token < tokens; ++token) {
    here[0] = kNever;
    for (size_t frame = 0; frame < frames; ++frame) {
      const float both = before[frame];
      const float of_token = before[frame + 1];
      const float of_frame = here[frame];
      Step step = Step::kFrame;
      float least = of_frame;
      if (both < of_token && both < of_frame) {
        step = Step::kBoth;
        least = both;
      } else if (of_token < both && of_token < of_frame) {
        step = Step::kToken;
        least = of_token;
      }
      steps[token * frames + frame] = step;
      here[frame + 1] = costs[token * frames + frame] + least;
    }
    std::swap(before, here);
  }
  return steps;
}

}  // namespace

std::vector<int32_t> token_times(const TokenTimesArgs& args) {
  check(args);
  const auto frames = static_cast<size_t>(args.frames);
  const auto tokens = static_cast<size_t>(args.end - args.first);
  std::vector<double> sums(tokens * frames);
  std::vector<float> row(frames);
  for (int64_t head = 0; head < args.heads; ++head) {
    const NormalizedHead normalized(args, head);
    for (size_t token = 0; token < tokens; ++token) {
      normalized.read(args.first + static_cast<int64_t>(token), row);
      add_medians(row, args.filter_width, std::span(sums).subspan(token * frames, frames));
    }
  }
  std::vector<float> costs(sums.size());
  std::ranges::transform(sums, costs.begin(), [&](double sum) {
    return -static_cast<float>(sum / static_cast<double>(args.heads));
  });
  const std::vector<Step> steps = find_steps(costs, tokens, frames);
  std::vector<int32_t> times(tokens);
  size_t token = tokens - 1;
  size_t frame = frames - 1;
  while (true) {
    times[token] = static_cast<int32_t>(frame);
    // Along the edges only one way leads back.
    const Step step = token == 0   ? Step::kFrame
                      : frame == 0 ? Step::kToken
                                   : steps[token * frames + frame];
    if (token == 0 && frame == 0) break;
    if (step != Step::kFrame) --token;
    if (step != Step::kToken) --frame;
  }
  return times;
}

}  // namespace packhorse::audio
