#include "cpu/patches/patches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/float_convert.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "ops/grid_taps.h"

namespace packhorse::cpu {
namespace {

/// Columns that are summed together, in float32.
constexpr int64_t kColumns = 256;

// Adds `weight` times a piece of a row to `sums`.
void add_row(const TensorView& table, int64_t row, int64_t column, int64_t count, float weight,
             float* sums) {
  std::array<float, kColumns> values;
  const char* const from = row_at(table, row) + static_cast<size_t>(column) * size_of(table.dtype);
  to_float32(from, table.dtype, values.data(), static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) sums[i] += weight * values[static_cast<size_t>(i)];
}

// Writes the row of a patch, which is row `from` of x and cell (row, column) of its grid.
void embed_patch(const EmbedPatchesArgs& args, int64_t from, int64_t cell, const int32_t* grid,
                 char* out) {
  const GridTable& positions = args.positions;
  const GridTaps down(positions.resize, positions.rows, grid[0], cell / grid[1]);
  const GridTaps across(positions.resize, positions.columns, grid[1], cell % grid[1]);
  const size_t element = size_of(args.x.dtype);
  std::array<float, kColumns> sums;
  for (int64_t first = 0; first < args.x.columns(); first += kColumns) {
    const int64_t count = std::min(kColumns, args.x.columns() - first);
    sums.fill(0);
    for (int64_t i = down.first(); i < down.end(); ++i) {
      const float outer = down.weight(i);
      if (outer == 0) continue;
      for (int64_t j = across.first(); j < across.end(); ++j) {
        const float weight = outer * across.weight(j);
        if (weight == 0) continue;
        add_row(positions.table, down.cell(i) * positions.columns + across.cell(j), first, count,
                weight, sums.data());
      }
    }
    add_row(args.x, from, first, count, 1, sums.data());
    from_float32(sums.data(), args.x.dtype, out + static_cast<size_t>(first) * element,
                 static_cast<size_t>(count));
  }
}

}  // namespace

void embed_patches(const EmbedPatchesArgs& args, ThreadPool& pool) {
  const int64_t prefix = args.prefix ? args.prefix.rows() : 0;
  const size_t bytes = static_cast<size_t>(args.x.columns()) * size_of(args.x.dtype);
  const int32_t* const offsets = args.batch.cu_seqlens;
  for_rows(args.batch.num_tokens, pool, [&](int64_t first, int64_t end) {
    const int32_t* sequence =
        std::upper_bound(offsets, offsets + args.batch.num_sequences + 1, first) - 1;
    int64_t before = 0;  // rows of all prefixes up to and with that of the sequence
    for (const int32_t* one = offsets; one <= sequence; ++one) {
      if (one[1] > one[0]) before += prefix;
    }
    for (int64_t token = first; token < end; ++token) {
      while (sequence[1] <= token) {
        ++sequence;
        if (sequence[1] > sequence[0]) before += prefix;
      }
      const int64_t i = token - sequence[0];
      char* const out = row_at(args.out, token);
      if (i < prefix) {
        std::memcpy(out, row_at(args.prefix, i), bytes);
      } else if (!args.positions.table) {
        std::memcpy(out, row_at(args.x, token - before), bytes);
      } else {
        embed_patch(args, token - before, i - prefix, args.grids + 2 * (sequence - offsets), out);
      }
    }
  });
}

namespace {

// Attention of one head over the keys of a sequence, whose softmax goes along with the sum.
void attend(const ProbeAttentionArgs& args, int64_t sequence, int64_t head) {
  const int64_t width = args.head_dim;
  const size_t element = size_of(args.keys.dtype);
  const size_t at = static_cast<size_t>(head * width) * element;
  const auto count = static_cast<size_t>(width);
  const float* const query = args.query + head * width;
  std::array<float, kMostProbeColumns> row;
  std::array<float, kMostProbeColumns> sums = {};
  float largest = 0;
  float total = 0;
  const int64_t begin = args.batch.cu_seqlens[sequence];
  const int64_t end = args.batch.cu_seqlens[sequence + 1];
  for (int64_t token = begin; token < end; ++token) {
    to_float32(row_at(args.keys, token) + at, args.keys.dtype, row.data(), count);
    float score = 0;
    for (size_t i = 0; i < count; ++i) score += query[i] * row[i];
    score *= args.scale;
    if (token == begin) largest = score;
    if (score > largest) {
      const float shrink = std::exp(largest - score);
      for (size_t i = 0; i < count; ++i) sums[i] *= shrink;
      total *= shrink;
      largest = score;
    }
    const float weight = std::exp(score - largest);
    total += weight;
    to_float32(row_at(args.values, token) + at, args.values.dtype, row.data(), count);
    for (size_t i = 0; i < count; ++i) sums[i] += weight * row[i];
  }
  for (size_t i = 0; i < count; ++i) sums[i] = end == begin ? 0 : sums[i] / total;
  from_float32(sums.data(), args.out.dtype, row_at(args.out, sequence) + at, count);
  if (head + 1 < args.num_heads) return;
  const int64_t padding = args.out.columns() - args.num_heads * width;
  std::memset(row_at(args.out, sequence) + at + count * element, 0,
              static_cast<size_t>(padding) * element);
}

}  // namespace

void probe_attention(const ProbeAttentionArgs& args, ThreadPool& pool) {
  pool.parallel_for(args.batch.num_sequences * args.num_heads, [&](int64_t task, int) {
    const CpuTimer timer(CpuPart::kAttention);
    attend(args, task / args.num_heads, task % args.num_heads);
  });
}

}  // namespace packhorse::cpu
