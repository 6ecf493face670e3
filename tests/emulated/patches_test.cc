// The kernels of image models, against float64: rows behind prefixes with resized positions, a
// query's attention over each sequence, and patches that are converted and padded.
#include "cuda/patches/patches.h"

#include "cuda/rowwise/rowwise.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

using Grids = std::vector<std::pair<int, int>>;

struct Table {
  int rows = 0, columns = 0;
  GridResize resize = GridResize::kCubic;
};

/// Weights [out, size] of resizing a row of `size` cells, as PyTorch's interpolate does without
/// align_corners.
std::vector<std::vector<double>> resizing(GridResize resize, int size, int out) {
  const bool cubic = resize == GridResize::kCubic || resize == GridResize::kCubicAntialias;
  const bool antialias =
      resize == GridResize::kLinearAntialias || resize == GridResize::kCubicAntialias;
  const double scale = static_cast<double>(size) / out;
  const double stretch = antialias ? std::max(scale, 1.0) : 1.0;
  const double a = antialias ? -0.5 : -0.75;
  std::vector<std::vector<double>> found(static_cast<size_t>(out),
                                         std::vector<double>(static_cast<size_t>(size)));
  for (int i = 0; i < out; ++i) {
    double centre = scale * (i + 0.5) - 0.5;
    if (!cubic && !antialias) centre = std::max(centre, 0.0);
    const double reach = (cubic ? 2 : 1) * stretch;
    double total = 0;
    std::vector<double>& row = found[static_cast<size_t>(i)];
    for (int j = static_cast<int>(std::floor(centre - reach));
         j <= static_cast<int>(std::ceil(centre + reach)); ++j) {
      if (antialias && (j < 0 || j >= size)) continue;
      const double x = std::abs(j - centre) / stretch;
      double w = std::max(0.0, 1 - x);
      if (cubic && x < 1) w = ((a + 2) * x - (a + 3)) * x * x + 1;
      if (cubic && x >= 1) w = x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
      row[static_cast<size_t>(std::clamp(j, 0, size - 1))] += w;
      total += w;
    }
    if (antialias) {
      for (double& w : row) w /= total;
    }
  }
  return found;
}

template <class T>
struct Images {
  Grids grids;
  Table table;
  int prefix, columns;
  std::vector<int32_t> begins{0};
  int patches = 0;
  Array<T> x, prefix_rows, positions;
  Array<int32_t> sizes, cu_seqlens;

  Images(const Grids& grids, const Table& table, int prefix, int columns, unsigned seed)
      : grids(grids),
        table(table),
        prefix(prefix),
        columns(columns),
        x(measure() * static_cast<size_t>(columns)),
        prefix_rows(static_cast<size_t>(prefix * columns)),
        positions(static_cast<size_t>(table.rows * table.columns * columns)),
        sizes(2 * grids.size()),
        cu_seqlens(begins) {
    std::mt19937 random(seed);
    fill_normal(x, random);
    fill_normal(prefix_rows, random);
    fill_normal(positions, random);
    for (size_t b = 0; b < grids.size(); ++b) {
      sizes[2 * b] = grids[b].first;
      sizes[2 * b + 1] = grids[b].second;
    }
  }
  size_t measure() {
    for (const auto& [rows, across] : grids) {
      const int cells = rows * across;
      patches += cells;
      begins.push_back(begins.back() + (cells == 0 ? 0 : cells + prefix));
    }
    return static_cast<size_t>(patches);
  }
  int tokens() const { return begins.back(); }

  EmbedPatchesArgs args(Array<T>& out) {
    EmbedPatchesArgs args;
    args.x = {x.data(), kDType<T>, patches, columns};
    if (prefix > 0) args.prefix = {prefix_rows.data(), kDType<T>, prefix, columns};
    if (table.rows > 0) {
      args.positions = {
          .table = {positions.data(), kDType<T>, int64_t{table.rows} * table.columns, columns},
          .rows = table.rows,
          .columns = table.columns,
          .resize = table.resize};
    }
    args.grids = sizes.data();
    args.batch = {.num_tokens = tokens(),
                  .num_sequences = static_cast<int64_t>(grids.size()),
                  .cu_seqlens = cu_seqlens.data()};
    args.out = {out.data(), kDType<T>, tokens(), columns};
    return args;
  }

  std::vector<double> reference() const {
    std::vector<double> result;
    size_t patch = 0;
    const auto width = static_cast<size_t>(columns);
    for (const auto& [rows, across] : grids) {
      if (rows * across == 0) continue;
      for (size_t i = 0; i < prefix_rows.size(); ++i) result.push_back(to_double(prefix_rows[i]));
      const auto down = resizing(table.resize, std::max(1, table.rows), rows);
      const auto right = resizing(table.resize, std::max(1, table.columns), across);
      for (int cell = 0; cell < rows * across; ++cell, ++patch) {
        for (size_t c = 0; c < width; ++c) {
          double sum = to_double(x[patch * width + c]);
          for (int i = 0; i < table.rows; ++i) {
            for (int j = 0; j < table.columns; ++j) {
              sum += down[static_cast<size_t>(cell / across)][static_cast<size_t>(i)] *
                     right[static_cast<size_t>(cell % across)][static_cast<size_t>(j)] *
                     to_double(positions[static_cast<size_t>(i * table.columns + j) * width + c]);
            }
          }
          result.push_back(sum);
        }
      }
    }
    return result;
  }
};

template <class T>
void check_images(const Grids& grids, const Table& table, int prefix, int columns, unsigned seed) {
  emulated::set_seed(seed);
  Images<T> images(grids, table, prefix, columns, seed);
  const auto size = static_cast<size_t>(images.tokens() * columns);
  Array<T> out(size);
  launch_embed_patches(images.args(out), emulated_stream());
  CHECK_WITHIN(error_of(out, images.reference()), 2 * kEpsilon<T>);
  // A launch for bounds, whose exact numbers lie on the device, writes the same rows.
  const size_t bound = grids.size() + 3;
  Array<int32_t> counts(std::vector<int32_t>{images.tokens(), static_cast<int32_t>(grids.size())});
  Array<int32_t> begins(bound + 1);
  for (size_t b = 0; b <= bound; ++b) {
    begins[b] = images.begins[std::min(b, grids.size())];
  }
  Array<T> again(size);
  EmbedPatchesArgs args = images.args(again);
  args.batch.counts = counts.data();
  args.batch.cu_seqlens = begins.data();
  args.batch.num_sequences = static_cast<int64_t>(bound);
  args.batch.num_tokens += 70;
  args.x.shape[0] += 70;
  args.out.shape[0] += 70;
  launch_embed_patches(args, emulated_stream());
  CHECK(again.same_bits(out));
  // The last image alone has the same bits.
  const auto [rows, across] = grids.back();
  const int last = rows * across;
  if (last == 0) return;
  Images<T> alone({grids.back()}, table, prefix, columns, seed);
  const auto tail = static_cast<size_t>(last * columns);
  std::memcpy(alone.x.data(), images.x.data() + images.x.size() - tail, tail * sizeof(T));
  std::memcpy(alone.prefix_rows.data(), images.prefix_rows.data(),
              images.prefix_rows.size() * sizeof(T));
  std::memcpy(alone.positions.data(), images.positions.data(), images.positions.size() * sizeof(T));
  Array<T> own(static_cast<size_t>(alone.tokens() * columns));
  launch_embed_patches(alone.args(own), emulated_stream());
  CHECK(std::memcmp(own.data(), out.data() + size - own.size(), own.size() * sizeof(T)) == 0);
}

/// Attention of one query over sequences of these lengths; `spare`: columns beyond the heads.
template <class T>
void check_probe(const std::vector<int>& lengths, int heads, int head_dim, int spare,
                 unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  std::vector<int32_t> begins{0};
  for (const int length : lengths) begins.push_back(begins.back() + length);
  const int tokens = begins.back(), columns = heads * head_dim + spare;
  Array<float> query(static_cast<size_t>(heads * head_dim));
  Array<T> keys(static_cast<size_t>(tokens * columns)), values(keys.size());
  fill_normal(query, random);
  fill_normal(keys, random);
  fill_normal(values, random);
  const auto at = [&](int token, int column) {
    return static_cast<size_t>(token * columns + column);
  };
  for (int t = 0; t < tokens; ++t) {
    for (int c = heads * head_dim; c < columns; ++c) keys[at(t, c)] = rounded<T>(NAN);
  }
  const auto attend = [&](int first, int count, Array<T>& out) {
    std::vector<int32_t> own{0};
    for (int b = 0; b < count; ++b) {
      own.push_back(own.back() + lengths[static_cast<size_t>(first + b)]);
    }
    const Array<int32_t> cu_seqlens(own);
    const int64_t rows = own.back();
    const size_t skipped = at(begins[static_cast<size_t>(first)], 0);
    ProbeAttentionArgs args;
    args.query = query.data();
    args.keys = {keys.data() + skipped, kDType<T>, rows, columns};
    args.values = {values.data() + skipped, kDType<T>, rows, columns};
    args.batch = {.num_tokens = rows, .num_sequences = count, .cu_seqlens = cu_seqlens.data()};
    args.num_heads = heads;
    args.head_dim = head_dim;
    args.scale = 0.3F;
    args.out = {out.data(), kDType<T>, count, columns};
    launch_probe_attention(args, emulated_stream());
  };
  const int count = static_cast<int>(lengths.size());
  Array<T> found(static_cast<size_t>(count * columns));
  attend(0, count, found);
  std::vector<double> expected(found.size());
  for (int b = 0; b < count; ++b) {
    for (int h = 0; h < heads; ++h) {
      std::vector<double> weights;
      double maximum = -INFINITY, sum = 0;
      const int begin = begins[static_cast<size_t>(b)];
      for (int t = begin; t < begins[static_cast<size_t>(b) + 1]; ++t) {
        double score = 0;
        for (int c = h * head_dim; c < (h + 1) * head_dim; ++c) {
          score += query[static_cast<size_t>(c)] * to_double(keys[at(t, c)]);
        }
        weights.push_back(static_cast<double>(0.3F) * score);
        maximum = std::max(maximum, weights.back());
      }
      for (double& weight : weights) sum += weight = std::exp(weight - maximum);
      for (int c = h * head_dim; c < (h + 1) * head_dim; ++c) {
        for (size_t i = 0; i < weights.size(); ++i) {
          expected[at(b, c)] +=
              weights[i] / sum * to_double(values[at(begin + static_cast<int>(i), c)]);
        }
      }
    }
  }
  CHECK_WITHIN(error_of(found, expected), 2 * kEpsilon<T>);
  for (int b = 0; b < count; ++b) {
    Array<T> alone(static_cast<size_t>(columns));
    attend(b, 1, alone);
    CHECK(std::memcmp(alone.data(), found.data() + at(b, 0), alone.size() * sizeof(T)) == 0);
  }
}

template <class To>
void check_padded_cast(int rows, int columns, int padding, int counted, unsigned seed) {
  emulated::set_seed(seed);
  std::mt19937 random(seed);
  Array<float> x(static_cast<size_t>(rows * columns));
  fill_normal(x, random);
  Array<To> out(static_cast<size_t>(rows * (columns + padding)));
  Array<int32_t> count(std::vector<int32_t>{counted});
  CastArgs args;
  args.x = {x.data(), DType::kFloat32, rows, columns};
  args.out = {out.data(), kDType<To>, rows, columns + padding};
  args.padding = padding;
  if (counted < rows) args.row_count = count.data();
  launch_cast(args, emulated_stream());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns + padding; ++c) {
      const bool exists = r < counted && c < columns;
      const To expected = rounded<To>(exists ? x[static_cast<size_t>(r * columns + c)] : 0);
      CHECK(to_double(out[static_cast<size_t>(r * (columns + padding) + c)]) ==
            to_double(expected));
    }
  }
}

}  // namespace

TEST(patches_behind_prefixes) {
  const Grids grids = {{2, 3}, {0, 5}, {1, 1}, {0, 0}, {4, 2}};
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_images<__half>(grids, {}, 0, 8, seed);
    check_images<__nv_bfloat16>(grids, {}, 5, 72, seed);
    check_images<__half>({{0, 0}}, {}, 1, 8, seed);
    check_images<__half>(grids, {.rows = 4, .columns = 2}, 1, 520, seed);
  }
}

TEST(patches_with_positions_of_any_grid) {
  const Grids grids = {{2, 8}, {1, 1}, {0, 3}, {5, 3}, {1, 20}, {7, 8}, {2, 4}};
  for (const GridResize resize : {GridResize::kLinear, GridResize::kCubic,
                                  GridResize::kLinearAntialias, GridResize::kCubicAntialias}) {
    check_images<__half>(grids, {.rows = 2, .columns = 8, .resize = resize}, 1, 24, 0);
    check_images<__nv_bfloat16>(grids, {.rows = 5, .columns = 3, .resize = resize}, 0, 264, 1);
    // One cell of a grid is made of more than 32 cells of the table.
    check_images<__half>({{1, 1}, {2, 1}}, {.rows = 3, .columns = 80, .resize = resize}, 1, 8, 2);
  }
}

TEST(probe_attention) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    check_probe<__half>({5, 0, 1, 70, 8, 9}, 3, 8, 0, seed);
    check_probe<__nv_bfloat16>({17, 1}, 2, 72, 0, seed);
    check_probe<__half>({20, 0}, 3, 7, 3, seed);
    check_probe<__half>({9}, 1, 512, 0, seed);
    check_probe<__nv_bfloat16>({0, 3}, 2, 130, 4, seed);
  }
}

TEST(casts_that_pad_rows) {
  for (unsigned seed = 0; seed < 2; ++seed) {
    check_padded_cast<__half>(5, 147, 5, 5, seed);
    check_padded_cast<__nv_bfloat16>(3, 16, 8, 3, seed);
    check_padded_cast<__half>(4, 8, 0, 4, seed);
    check_padded_cast<__half>(6, 12, 4, 2, seed);
  }
}

}  // namespace packhorse::cuda
