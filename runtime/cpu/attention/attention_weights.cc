#include <algorithm>
#include <array>
#include <cmath>

#include "core/float8.h"
#include "core/float_convert.h"
#include "core/math.h"
#include "cpu/attention/attention.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kRows = 8;      // queries of a task, which share converted keys
constexpr int64_t kColumns = 64;  // columns of a head that are converted at once
constexpr int64_t kLanes = 16;    // keys whose scores are summed together
static_assert(kPageTokens % kLanes == 0);

// Columns of the keys of a page, as float32, one column after the other.
using KeyColumns = std::array<float, kColumns * kPageTokens>;

class Weights {
 public:
  explicit Weights(const AttentionWeightsArgs& args)
      : args_(args), kv_head_(args.head / (args.num_heads / args.num_kv_heads)) {}

  /// Writes rows [first, end) of the result.
  void write(int64_t first, int64_t end) const {
    for (int64_t row = first; row < end; ++row) {
      std::fill(out(row), out(row) + args_.num_keys, 0.0f);
    }
    for (int64_t key = 0; key < args_.num_keys; key += kPageTokens) add_page(first, end, key);
    for (int64_t row = first; row < end; ++row) normalize(out(row));
  }

 private:
  float* out(int64_t row) const { return args_.out.as<float>() + row * args_.out.row_stride; }

  // Adds products with the page of keys that begins at `key` to the scores.
  void add_page(int64_t first, int64_t end, int64_t key) const {
    const int64_t count = std::min(kPageTokens, args_.num_keys - key);
    for (int64_t column = 0; column < args_.head_dim; column += kColumns) {
      const int64_t columns = std::min(kColumns, args_.head_dim - column);
      KeyColumns keys;
      read_keys(key, count, column, columns, keys);
      for (int64_t row = first; row < end; ++row) {
        add_products(row, column, columns, keys, count, out(row) + key);
      }
    }
  }

  void read_keys(int64_t key, int64_t count, int64_t column, int64_t columns,
                 KeyColumns& keys) const {
    const PagedKvCache& pages = args_.pages;
    const int64_t page = pages.table[args_.sequence * pages.table_stride + key / kPageTokens];
    const int64_t first = (page * args_.num_kv_heads + kv_head_) * kPageTokens;
    const DType dtype = pages.keys.dtype;
    std::array<float, kColumns> values;
    keys.fill(0);
    for (int64_t i = 0; i < count; ++i) {
      const char* const from =
          row_at(pages.keys, first + i) + static_cast<size_t>(column) * size_of(dtype);
      if (dtype == DType::kFloat8) {
        const float scale = pages.key_scales.as<const float>()[first + i];
        for (int64_t c = 0; c < columns; ++c) {
          const auto bits = static_cast<uint8_t>(from[c]);
          values[static_cast<size_t>(c)] = float8_to_float32(bits) * scale;
        }
      } else {
        to_float32(from, dtype, values.data(), static_cast<size_t>(columns));
      }
      for (int64_t c = 0; c < columns; ++c) {
        keys[static_cast<size_t>(c * kPageTokens + i)] = values[static_cast<size_t>(c)];
      }
    }
  }

  void add_products(int64_t row, int64_t column, int64_t columns, const KeyColumns& keys,
                    int64_t count, float* scores) const {
    std::array<float, kColumns> query;
    const int64_t at = args_.head * args_.head_dim + column;
    to_float32(row_at(args_.q, row) + static_cast<size_t>(at) * size_of(args_.q.dtype),
               args_.q.dtype, query.data(), static_cast<size_t>(columns));
    for (int64_t first = 0; first < count; first += kLanes) {
      std::array<float, kLanes> sums = {};
      for (int64_t c = 0; c < columns; ++c) {
        const float factor = query[static_cast<size_t>(c)];
        const float* const lane = keys.data() + c * kPageTokens + first;
        for (int64_t i = 0; i < kLanes; ++i) sums[static_cast<size_t>(i)] += factor * lane[i];
      }
      const int64_t lanes = std::min(kLanes, count - first);
      for (int64_t i = 0; i < lanes; ++i) scores[first + i] += sums[static_cast<size_t>(i)];
    }
  }

  void normalize(float* scores) const {
    const float largest = *std::max_element(scores, scores + args_.num_keys) * args_.scale;
    double total = 0;
    for (int64_t i = 0; i < args_.num_keys; ++i) {
      scores[i] = std::exp(scores[i] * args_.scale - largest);
      total += static_cast<double>(scores[i]);
    }
    const auto factor = static_cast<float>(1 / total);
    for (int64_t i = 0; i < args_.num_keys; ++i) scores[i] *= factor;
  }

  const AttentionWeightsArgs& args_;
  const int64_t kv_head_;  // head of the keys
};

}  // namespace

void attention_weights(const AttentionWeightsArgs& args, ThreadPool& pool) {
  pool.parallel_for(ceil_div(args.q.rows(), kRows), [&](int64_t task, int) {
    const CpuTimer timer(CpuPart::kAttention);
    Weights(args).write(task * kRows, std::min(args.q.rows(), (task + 1) * kRows));
  });
}

}  // namespace packhorse::cpu
