#include "image/features.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "core/format.h"
#include "core/math.h"
#include "cpu/threads/shared_pools.h"
#include "packhorse/error.h"

namespace packhorse::image {
namespace {

constexpr int64_t kChannels = 3;

// The part of a frame's axis that shows the resized image: `source` of the image, at `begin` of the
// frame. Empty if the frame lies beside the image.
struct Shown {
  Span source;
  int64_t begin = 0;
};

Shown shown_of(int64_t offset, int64_t frame, int64_t resized) {
  const Span source = {.begin = std::clamp(offset, int64_t{0}, resized),
                       .end = std::clamp(offset + frame, int64_t{0}, resized)};
  return {source, source.begin - offset};
}

void check(const Plan& plan, const Layout& layout) {
  const auto refuse = [](const char* what, Size found, const char* expected) {
    throw InvalidArgument(
        concat("the ", what, " is ", found.height, " x ", found.width, ", expected ", expected));
  };
  const auto sides = [&](const char* what, Size size) {
    if (size.height < 1 || size.width < 1 || size.height > kMostOfSide ||
        size.width > kMostOfSide) {
      refuse(what, size, "sides of 1 to 1048576 pixels");
    }
  };
  sides("size that an image is resized to", plan.resized);
  sides("frame of an image", plan.frame);
  sides("padded size of an image", plan.padded);
  if (plan.padded.height < plan.frame.height || plan.padded.width < plan.frame.width) {
    refuse("padded size of an image", plan.padded, "at least that of its frame");
  }
  if (plan.pixels.channels != kChannels) {
    throw InvalidArgument(
        concat("an image has ", plan.pixels.channels, " channels, expected ", kChannels));
  }
  const Size patch = layout.patch;
  if (patch == Size{}) return;
  sides("patch", patch);
  if (plan.padded.height % patch.height != 0 || plan.padded.width % patch.width != 0) {
    refuse("size of an image", plan.padded, "a multiple of the patch");
  }
}

// Writes rows of numbers where the layout has them.
class Writer {
 public:
  Writer(const Plan& plan, const Values& values, const Layout& layout)
      : plan_(plan),
        values_(values),
        patch_(layout.patch == Size{} ? plan.padded : layout.patch),
        patches_(plan.padded.width / patch_.width) {}

  // Bytes are those of the columns from `begin` on, [columns][3]. The others of the frame are 0.
  void write(int64_t row, const uint8_t* bytes, int64_t begin, int64_t columns) const {
    spread(row, 0, begin, nullptr);
    spread(row, begin, begin + columns, bytes);
    spread(row, begin + columns, plan_.frame.width, nullptr);
    clear(row, plan_.frame.width);
  }

  void write_outside(int64_t row) const {
    spread(row, 0, plan_.frame.width, nullptr);
    clear(row, plan_.frame.width);
  }

  // Makes the numbers of a row 0 from a column on.
  void clear(int64_t row, int64_t from) const {
    each_part(row, from, plan_.padded.width,
              [](float* to, int64_t, int64_t count, int64_t) { std::fill_n(to, count, 0.0f); });
  }

 private:
  // Calls body(where, column, columns, channel) for each run of a row that lies in one patch.
  template <class Body>
  void each_part(int64_t row, int64_t begin, int64_t end, const Body& body) const {
    const int64_t plane = patch_.height * patch_.width;
    for (int64_t column = begin; column < end;) {
      const int64_t patch = row / patch_.height * patches_ + column / patch_.width;
      const int64_t count = std::min(end, round_up(column + 1, patch_.width)) - column;
      float* to = plan_.out + patch * kChannels * plane + row % patch_.height * patch_.width +
                  column % patch_.width;
      for (int64_t channel = 0; channel < kChannels; ++channel) {
        body(to + channel * plane, column, count, channel);
      }
      column += count;
    }
  }

  void spread(int64_t row, int64_t begin, int64_t end, const uint8_t* bytes) const {
    each_part(row, begin, end, [&](float* to, int64_t column, int64_t count, int64_t channel) {
      const auto& values = values_[static_cast<size_t>(channel)];
      if (bytes == nullptr) {
        std::fill_n(to, count, values[0]);
        return;
      }
      const uint8_t* from = bytes + (column - begin) * kChannels + channel;
      for (int64_t i = 0; i < count; ++i) to[i] = values[from[i * kChannels]];
    });
  }

  const Plan& plan_;
  const Values& values_;
  const Size patch_;
  const int64_t patches_;
};

// One image's work, cut into bands of rows. The first band also writes what shows no image.
struct Job {
  Writer writer;
  Shown rows, columns;
  std::optional<Resizer> resizer;  // none if the frame shows nothing of the image
  int64_t bands = 1;
};

}  // namespace

void make_features(const std::vector<Plan>& plans, const Values& values, const Layout& layout,
                   Filter filter, Rule rule, int threads) {
  std::vector<Job> jobs;
  jobs.reserve(plans.size());
  std::vector<std::pair<size_t, int64_t>> tasks;  // job and band
  for (const Plan& plan : plans) {
    check(plan, layout);
    Job job{.writer = {plan, values, layout},
            .rows = shown_of(plan.top, plan.frame.height, plan.resized.height),
            .columns = shown_of(plan.left, plan.frame.width, plan.resized.width),
            .resizer = {}};
    const Span rows = job.rows.source, columns = job.columns.source;
    if (rows.size() > 0 && columns.size() > 0) {
      job.resizer.emplace(plan.pixels, Window{plan.resized, rows, columns}, filter, rule);
      job.bands = ceil_div(rows.size(), job.resizer->band());
    }
    for (int64_t band = 0; band < job.bands; ++band) tasks.emplace_back(jobs.size(), band);
    jobs.push_back(std::move(job));
  }
  const auto pool = cpu::shared_pool(threads, false);
  std::vector<Resizer::Scratch> scratches(static_cast<size_t>(pool->threads()));
  pool->parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t task, int worker) {
    const auto [index, band] = tasks[static_cast<size_t>(task)];
    const Job& job = jobs[index];
    const Plan& plan = plans[index];
    const int64_t shown = job.resizer ? job.rows.source.size() : 0;
    if (band == 0) {
      for (int64_t row = 0; row < plan.frame.height; ++row) {
        const bool inside = row >= job.rows.begin && row < job.rows.begin + shown;
        if (!inside) job.writer.write_outside(row);
      }
      for (int64_t row = plan.frame.height; row < plan.padded.height; ++row) {
        job.writer.clear(row, 0);
      }
    }
    if (!job.resizer) return;
    const int64_t begin = band * job.resizer->band();
    const Span rows = {begin, std::min(begin + job.resizer->band(), shown)};
    job.resizer->make(rows, scratches[static_cast<size_t>(worker)],
                      [&](int64_t row, const uint8_t* bytes) {
                        job.writer.write(job.rows.begin + row, bytes, job.columns.begin,
                                         job.columns.source.size());
                      });
  });
}

void resize(const Pixels& pixels, Size size, Filter filter, Rule rule, uint8_t* out, int threads) {
  const Resizer resizer(pixels, {size, {0, size.height}, {0, size.width}}, filter, rule);
  const auto row_bytes = static_cast<size_t>(size.width * pixels.channels);
  const auto pool = cpu::shared_pool(threads, false);
  std::vector<Resizer::Scratch> scratches(static_cast<size_t>(pool->threads()));
  pool->parallel_for(ceil_div(size.height, resizer.band()), [&](int64_t band, int worker) {
    const int64_t begin = band * resizer.band();
    const Span rows = {begin, std::min(begin + resizer.band(), size.height)};
    resizer.make(rows, scratches[static_cast<size_t>(worker)],
                 [&](int64_t row, const uint8_t* bytes) {
                   std::memcpy(out + static_cast<size_t>(row) * row_bytes, bytes, row_bytes);
                 });
  });
}

}  // namespace packhorse::image
