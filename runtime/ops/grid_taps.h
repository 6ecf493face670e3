// The arithmetic of resizing tables of positions and of steps to a grid, which both backends share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/args/patches.h"

namespace packhorse {

/// The cells of a table that one cell of a grid is made of, in one direction, and their weights.
/// Weights are computed as they are read, so that there is no limit on their number.
class GridTaps {
 public:
  /// `table`, `grid`: cells of the table and of the grid. `at`: the cell of the grid.
  constexpr GridTaps(GridResize resize, int64_t table, int64_t grid, int64_t at)
      : cubic_(resize == GridResize::kCubic || resize == GridResize::kCubicAntialias),
        antialias_(resize == GridResize::kLinearAntialias || resize == GridResize::kCubicAntialias),
        table_(table) {
    const double scale = static_cast<double>(table) / static_cast<double>(grid);
    const double support = cubic_ ? 2 : 1;
    centre_ = scale * (static_cast<double>(at) + 0.5) - 0.5;
    if (antialias_) {
      stretch_ = std::max(scale, 1.0);
      first_ = std::max<int64_t>(0, floor_of(centre_ + 1.0 - support * stretch_));
      end_ = std::min(table, floor_of(centre_ + 1.0 + support * stretch_));
      double sum = 0;
      for (int64_t i = first_; i < end_; ++i) sum += unscaled(i);
      total_ = sum;
    } else {
      // The linear filter never reaches beyond the edge's centre.
      if (!cubic_) centre_ = std::max(0.0, centre_);
      first_ = floor_of(centre_) - (cubic_ ? 1 : 0);
      end_ = first_ + (cubic_ ? 4 : 2);
    }
  }

  constexpr int64_t first() const { return first_; }
  constexpr int64_t end() const { return end_; }
  /// The cell of the table that tap i reads: beyond the edge, that at the edge.
  constexpr int64_t cell(int64_t i) const { return std::clamp<int64_t>(i, 0, table_ - 1); }
  constexpr float weight(int64_t i) const { return static_cast<float>(unscaled(i) / total_); }

 private:
  static constexpr int64_t floor_of(double value) {
    const auto whole = static_cast<int64_t>(value);
    return static_cast<double>(whole) > value ? whole - 1 : whole;
  }

  // The filter at tap i (Keys, 1981, for cubic ones).
  constexpr double unscaled(int64_t i) const {
    const double distance = (static_cast<double>(i) - centre_) / stretch_;
    const double x = distance < 0 ? -distance : distance;
    if (!cubic_) return std::max(0.0, 1.0 - x);
    const double a = antialias_ ? -0.5 : -0.75;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    return 0;
  }

  bool cubic_;
  bool antialias_;
  int64_t table_;
  double centre_ = 0;
  double stretch_ = 1;
  double total_ = 1;
  int64_t first_ = 0;
  int64_t end_ = 0;
};

/// One direction of a table of steps (ScoreTermKind::kGrid) resized linearly: step `at` of `to`
/// lies between two of `from`. In float32, as PyTorch resizes float32 tables.
struct StepBetween {
  constexpr StepBetween(int64_t at, int64_t from, int64_t to) {
    const float scale = static_cast<float>(from) / static_cast<float>(to);
    const float centre = std::max(0.0f, scale * (static_cast<float>(at) + 0.5f) - 0.5f);
    low = std::min(static_cast<int64_t>(centre), from - 1);
    high = std::min(low + 1, from - 1);
    weight = centre - static_cast<float>(low);
  }

  int64_t low;
  int64_t high;
  float weight;  // belongs to `high`
};

}  // namespace packhorse
