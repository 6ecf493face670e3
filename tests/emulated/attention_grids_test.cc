// Places in images: score terms of grids in the portable attention, and rotations by cells, against
// float64.
#include <numbers>

#include "cuda/attention/portable/sm80.h"
#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

using Grid = std::pair<int, int>;
using Grids = std::vector<Grid>;

/// Tokens of an image: its cells behind `prefix` rows, or none.
int tokens_of(const Grid& grid, int prefix) {
  const int cells = grid.first * grid.second;
  return cells == 0 ? 0 : cells + prefix;
}

/// Offsets of images, and their grids, where they lie on a device.
struct Layout {
  std::vector<int32_t> begins{0};
  Array<int32_t> cu_seqlens, sizes;

  Layout(const Grids& grids, int prefix) : cu_seqlens(grids.size() + 1), sizes(2 * grids.size()) {
    cu_seqlens[0] = 0;
    for (size_t b = 0; b < grids.size(); ++b) {
      begins.push_back(begins.back() + tokens_of(grids[b], prefix));
      cu_seqlens[b + 1] = begins.back();
      sizes[2 * b] = grids[b].first;
      sizes[2 * b + 1] = grids[b].second;
    }
  }
  int32_t tokens() const { return begins.back(); }
  BatchView batch() const {
    BatchView view{.num_tokens = tokens(),
                   .num_sequences = static_cast<int64_t>(begins.size()) - 1,
                   .cu_seqlens = cu_seqlens.data()};
    for (size_t b = 1; b < begins.size(); ++b) {
      view.max_seqlen = std::max<int64_t>(view.max_seqlen, begins[b] - begins[b - 1]);
    }
    return view;
  }
};

/// The number at step `at` of `to` in a row of numbers that is resized linearly.
double between(const std::vector<double>& row, int at, int to) {
  const auto from = static_cast<int>(row.size());
  const double centre = std::max(0.0, from * (at + 0.5) / to - 0.5);
  const int low = std::min(static_cast<int>(centre), from - 1);
  const int high = std::min(low + 1, from - 1);
  return row[static_cast<size_t>(low)] +
         (centre - low) * (row[static_cast<size_t>(high)] - row[static_cast<size_t>(low)]);
}

/// The table of a layer: a number of each head for each step and for the first token.
struct Table {
  int rows, columns, heads;
  Array<float> numbers;

  Table(int rows, int columns, int heads)
      : rows(rows),
        columns(columns),
        heads(heads),
        numbers(static_cast<size_t>(grid_steps(rows, columns) * heads)) {
    std::mt19937 random(7);
    fill_normal(numbers, random);
  }
  double at(int64_t step, int head) const {
    return numbers[static_cast<size_t>(step * heads + head)];
  }
  /// The number added to the score of a query and a key of an image.
  double term(const Grid& grid, int head, int query, int key) const {
    const int down = 2 * rows - 1, across = 2 * columns - 1;
    const int64_t ends = int64_t{down} * across;
    if (query == 0) return at(key == 0 ? ends + 2 : ends, head);
    if (key == 0) return at(ends + 1, head);
    const auto& [grid_rows, grid_columns] = grid;
    const int i = (query - 1) / grid_columns - (key - 1) / grid_columns + grid_rows - 1;
    const int j = (query - 1) % grid_columns - (key - 1) % grid_columns + grid_columns - 1;
    std::vector<double> column;
    for (int r = 0; r < down; ++r) {
      std::vector<double> row;
      for (int c = 0; c < across; ++c) row.push_back(at(int64_t{r} * across + c, head));
      column.push_back(between(row, j, 2 * grid_columns - 1));
    }
    return between(column, i, 2 * grid_rows - 1);
  }
};

/// Attention over images. Rows of an image are the same wherever it stands.
template <class T>
struct Images {
  Grids grids;
  const Table& table;
  int64_t width;
  Layout layout;
  Array<T> qkv, out;
  Array<unsigned char> workspace;

  Images(const Grids& grids, const Table& table, int head_dim, PortableLimits limits)
      : grids(grids),
        table(table),
        width(int64_t{table.heads} * head_dim),
        layout(grids, 1),
        qkv(static_cast<size_t>(layout.tokens() * 3 * width)),
        out(static_cast<size_t>(layout.tokens() * width)),
        workspace(attention_sm80_workspace(args(), limits)) {
    for (size_t b = 0; b < grids.size(); ++b) {
      std::mt19937 random(static_cast<unsigned>(100 * grids[b].first + grids[b].second));
      std::normal_distribution<double> normal(0, 1);
      for (int64_t i = layout.begins[b] * 3 * width; i < layout.begins[b + 1] * 3 * width; ++i) {
        qkv[static_cast<size_t>(i)] = rounded<T>(normal(random));
      }
    }
  }
  AttentionArgs args() {
    AttentionArgs p;
    p.q = {qkv.data(), kDType<T>, layout.tokens(), width, 3 * width};
    p.k = {qkv.data() + width, kDType<T>, layout.tokens(), width, 3 * width};
    p.v = {qkv.data() + 2 * width, kDType<T>, layout.tokens(), width, 3 * width};
    p.out = {out.data(), kDType<T>, layout.tokens(), width};
    p.queries = p.keys = layout.batch();
    p.num_heads = p.num_kv_heads = table.heads;
    p.head_dim = static_cast<int32_t>(width) / table.heads;
    p.scale = 1 / std::sqrt(static_cast<float>(p.head_dim));
    p.term.kind = ScoreTermKind::kGrid;
    p.term.table = table.numbers.data();
    p.term.grid_rows = table.rows;
    p.term.grid_columns = table.columns;
    p.term.grids = layout.sizes.data();
    return p;
  }
  void launch(const AttentionArgs& from, PortableLimits limits) {
    AttentionArgs p = from;
    p.workspace = workspace.data();
    launch_attention_sm80(p, emulated_stream(), limits);
  }

  std::vector<double> expected() const {
    std::vector<double> result(out.size());
    const int d = static_cast<int>(width) / table.heads;
    const auto value = [&](int token, int64_t column) {
      return to_double(qkv[static_cast<size_t>(token * 3 * width + column)]);
    };
    for (size_t b = 0; b < grids.size(); ++b) {
      const int begin = layout.begins[b], count = layout.begins[b + 1] - begin;
      for (int h = 0; h < table.heads; ++h) {
        for (int i = 0; i < count; ++i) {
          std::vector<double> weights;
          double sum = 0;
          for (int j = 0; j < count; ++j) {
            double score = 0;
            for (int c = h * d; c < (h + 1) * d; ++c) {
              score += value(begin + i, c) * value(begin + j, width + c);
            }
            weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d)) +
                                       table.term(grids[b], h, i, j)));
            sum += weights.back();
          }
          for (int j = 0; j < count; ++j) {
            for (int c = h * d; c < (h + 1) * d; ++c) {
              result[static_cast<size_t>((begin + i) * width + c)] +=
                  weights[static_cast<size_t>(j)] / sum * value(begin + j, 2 * width + c);
            }
          }
        }
      }
    }
    return result;
  }
};

template <class T>
void check_attention(const Grids& grids, const Table& table, int head_dim, unsigned seed,
                     PortableLimits limits = {}) {
  emulated::set_seed(seed);
  Images<T> images(grids, table, head_dim, limits);
  images.launch(images.args(), limits);
  CHECK_WITHIN(error_of(images.out, images.expected()), 8 * kEpsilon<T>);
  // Alone each image has the same bits.
  for (size_t b = 0; b < grids.size(); ++b) {
    Images<T> alone({grids[b]}, table, head_dim, limits);
    alone.launch(alone.args(), limits);
    const auto first = static_cast<size_t>(images.layout.begins[b] * images.width);
    CHECK(std::memcmp(alone.out.data(), images.out.data() + first, alone.out.size() * sizeof(T)) ==
          0);
  }
  // A launch for bounds, whose exact numbers lie on the device, writes the same rows.
  Images<T> bounded(grids, table, head_dim, limits);
  Array<int32_t> counts(
      std::vector<int32_t>{images.layout.tokens(), static_cast<int32_t>(grids.size())});
  Array<int32_t> begins(grids.size() + 4);
  for (size_t b = 0; b < begins.size(); ++b) {
    begins[b] = images.layout.begins[std::min(b, grids.size())];
  }
  AttentionArgs p = bounded.args();
  p.queries.counts = counts.data();
  p.queries.cu_seqlens = begins.data();
  p.queries.num_sequences += 3;
  p.keys = p.queries;
  bounded.launch(p, limits);
  CHECK(bounded.out.same_bits(images.out));
}

/// Rotates the heads of images, whose pairs of columns lie side by side.
template <class T>
void check_rotation(const Grids& grids, int prefix, int dims, int head_dim, unsigned seed) {
  emulated::set_seed(seed);
  constexpr int kHeads = 2;
  std::mt19937 random(seed);
  const Layout layout(grids, prefix);
  const int tokens = layout.tokens(), width = kHeads * head_dim;
  Array<float> frequencies(static_cast<size_t>(dims / 2)),
      rotation(static_cast<size_t>(2 * tokens));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        static_cast<float>(std::pow(100.0, -static_cast<double>(i % (dims / 4)) * 4 / dims));
  }
  Array<T> x(static_cast<size_t>(tokens * 2 * width));
  fill_normal(x, random);
  std::vector<double> expected;
  for (size_t i = 0; i < x.size(); ++i) expected.push_back(to_double(x[i]));
  for (size_t b = 0; b < grids.size(); ++b) {
    const auto& [rows, columns] = grids[b];
    for (int cell = 0; cell < rows * columns; ++cell) {
      const double places[2] = {2 * (cell / columns + 0.5) / rows - 1,
                                2 * (cell % columns + 0.5) / columns - 1};
      for (int h = 0; h < 2 * kHeads; ++h) {
        for (int pair = 0; pair < dims / 2; ++pair) {
          const double angle = 2 * std::numbers::pi * places[pair < dims / 4 ? 0 : 1] *
                               frequencies[static_cast<size_t>(pair)];
          const auto at = static_cast<size_t>((layout.begins[b] + prefix + cell) * 2 * width +
                                              h * head_dim + 2 * pair);
          const double left = expected[at], right = expected[at + 1];
          expected[at] = left * std::cos(angle) - right * std::sin(angle);
          expected[at + 1] = right * std::cos(angle) + left * std::sin(angle);
        }
      }
    }
  }
  launch_rotation({.frequencies = frequencies.data(),
                   .dims = dims,
                   .grids = layout.sizes.data(),
                   .prefix = prefix,
                   .batch = layout.batch(),
                   .out = {rotation.data(), DType::kFloat32, tokens, 2}},
                  emulated_stream());
  RopeArgs rope;
  rope.q = {x.data(), kDType<T>, tokens, width, 2 * width};
  rope.k = {x.data() + width, kDType<T>, tokens, width, 2 * width};
  rope.num_heads = rope.num_kv_heads = kHeads;
  rope.head_dim = rope.model_dim = head_dim;
  rope.rotation = {rotation.data(), DType::kFloat32, tokens, 2};
  rope.frequencies = frequencies.data();
  rope.dims = dims;
  rope.grid = true;
  launch_rope(rope, emulated_stream());
  CHECK_WITHIN(error_of(x, expected), 2 * kEpsilon<T>);
}

// Grids of the table's size and of others; one row, one column, one cell and none.
const Grids kGrids = {{3, 5}, {0, 4}, {1, 1}, {7, 2}, {1, 20}, {9, 8}, {6, 1}, {0, 0}};

TEST(attention_adds_steps_in_grids) {
  const Table table(3, 5, 2), square(4, 4, 3), cell(1, 1, 1);
  for (unsigned seed = 0; seed < 3; ++seed) check_attention<__half>(kGrids, table, 32, seed);
  check_attention<__nv_bfloat16>(kGrids, square, 32, 3);
  check_attention<__half>({{2, 2}, {1, 3}}, cell, 24, 4);
  check_attention<__half>({{24, 23}, {3, 1}}, table, 32, 5);  // two groups of queries to a warp
}

TEST(all_portable_kernels_add_steps_in_grids) {
  const Table table(3, 5, 2);
  check_attention<__half>(kGrids, table, 32, 0, {.short_keys = kShortKeys});
  check_attention<__half>(kGrids, table, 32, 1, {.grouped_keys = kGroupedKeys});
  check_attention<__half>(kGrids, table, 32, 2, {.short_keys = 20, .grouped_keys = 40});
}

TEST(cells_of_grids_rotate_heads) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_rotation<__half>(kGrids, 5, 16, 16, seed);
    check_rotation<__nv_bfloat16>(kGrids, 0, 64, 64, seed);
    check_rotation<__half>({{2, 3}}, 1, 24, 40, seed);
  }
}

}  // namespace
}  // namespace packhorse::cuda
