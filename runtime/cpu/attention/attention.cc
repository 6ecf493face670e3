#include "cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/format.h"
#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/workspace.h"
#include "ops/grid_taps.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

constexpr int32_t kMostSideBuckets = 1024;
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kSmallTile = 64;
static_assert(kSmallTile % kQueryGroup == 0 && kQueryTile % kSmallTile == 0);

struct Scratch {
  Scratch(Workspace& workspace, const AttentionArgs& args, int threads)
      : tile_floats(round_up(attention_scratch_floats(args.head_dim), 16)),
        // A grid of n cells has fewer than 4 n steps.
        grid_floats(args.term.kind == ScoreTermKind::kGrid ? 4 * args.queries.max_seqlen + 4 : 0),
        tiles(workspace.take<float>(threads * tile_floats)),
        order(workspace.take<int32_t>(args.queries.num_sequences)),
        first_task(workspace.take<int64_t>(args.queries.num_sequences + 1)),
        bucket_starts(workspace.take<int32_t>(kMostSideBuckets)),
        grids(workspace.take<float>(threads * grid_floats)) {}

  int64_t tile_floats;
  int64_t grid_floats;
  float* tiles;            // [threads, tile_floats]
  int32_t* order;          // [num_sequences] in descending order of keys
  int64_t* first_task;     // [num_sequences + 1] in that order
  int32_t* bucket_starts;  // [side_buckets]
  float* grids;            // [threads, grid_floats]
};

int32_t length_of(const BatchView& batch, int32_t sequence) {
  return batch.cu_seqlens[sequence + 1] - batch.cu_seqlens[sequence];
}

// Computes the smallest distance of each bucket of one direction. Half of the buckets hold one
// distance each; the others grow with the logarithm of the distance, up to max_distance (Raffel et
// al., T5, arXiv 1910.10683, section 2.1). The arithmetic is in float32, as in training, because
// rounding decides at the boundaries.
void fill_bucket_starts(const ScoreTerm& term, int32_t side_buckets, int32_t* starts) {
  const int32_t exact = side_buckets / 2;
  std::fill(starts, starts + side_buckets, std::numeric_limits<int32_t>::max());
  for (int32_t distance = term.max_distance; distance >= 0; --distance) {
    int32_t bucket = distance;
    if (distance >= exact) {
      const float range = static_cast<float>(
          std::log(static_cast<double>(term.max_distance) / static_cast<double>(exact)));
      const float ratio = static_cast<float>(distance) / static_cast<float>(exact);
      const float step = std::log(ratio) / range * static_cast<float>(side_buckets - exact);
      bucket = std::min(exact + static_cast<int32_t>(step), side_buckets - 1);
    }
    starts[bucket] = distance;
  }
  // A bucket without any distance starts, and ends, where the next one starts.
  for (int32_t i = side_buckets - 1; i > 0; --i) starts[i - 1] = std::min(starts[i - 1], starts[i]);
}

// Writes a head's column of a term of grids, resized to a grid, in units of log2(e).
void resize_steps(const ScoreTerm& term, int64_t head, int64_t num_heads, const int32_t* grid,
                  float* out) {
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  const int64_t rows = 2 * int64_t{term.grid_rows} - 1;
  const int64_t columns = 2 * int64_t{term.grid_columns} - 1;
  const auto at = [&](int64_t step) { return term.table[step * num_heads + head]; };
  for (int64_t i = 0; i < 2 * grid[0] - 1; ++i) {
    const StepBetween down(i, rows, 2 * int64_t{grid[0]} - 1);
    for (int64_t j = 0; j < 2 * grid[1] - 1; ++j) {
      const StepBetween across(j, columns, 2 * int64_t{grid[1]} - 1);
      const auto mixed = [&](int64_t row) {
        return (1.0f - across.weight) * at(row * columns + across.low) +
               across.weight * at(row * columns + across.high);
      };
      *out++ = ((1.0f - down.weight) * mixed(down.low) + down.weight * mixed(down.high)) * kLog2E;
    }
  }
  for (int64_t i = 0; i < 3; ++i) *out++ = at(rows * columns + i) * kLog2E;
}

}  // namespace

size_t attention_workspace(const AttentionArgs& args, int threads) {
  Workspace workspace;
  Scratch(workspace, args, threads);
  return workspace.bytes();
}

void attention(const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool) {
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args, pool.threads());

  AttentionTile whole;  // the part that all tiles share
  whole.q_stride = args.q.row_stride;
  whole.k_stride = args.k.row_stride;
  whole.v_stride = args.v.row_stride;
  whole.out_stride = args.out.row_stride;
  whole.head_dim = args.head_dim;
  whole.scale = args.scale;
  whole.rounded = args.rounded;
  whole.left = args.mask.window_left < 0 ? kUnlimited : args.mask.window_left;
  whole.right = args.mask.window_right < 0 ? kUnlimited : args.mask.window_right;
  if (args.mask.causal) whole.right = 0;
  if (args.term.kind == ScoreTermKind::kBucketed) {
    const int32_t sides = args.term.bidirectional ? 2 : 1;
    whole.side_buckets = args.term.num_buckets / sides;
    whole.bidirectional = args.term.bidirectional;
    if (whole.side_buckets > kMostSideBuckets) {
      throw InvalidArgument(concat("attention: num_buckets is ", args.term.num_buckets,
                                   ", expected at most ", sides * kMostSideBuckets));
    }
    fill_bucket_starts(args.term, whole.side_buckets, scratch.bucket_starts);
    whole.bucket_starts = scratch.bucket_starts;
    whole.table_stride = args.num_heads;
  }

  if (args.term.kind == ScoreTermKind::kDisentangled) {
    whole.slots = args.term.slots + args.term.slot_limit;
    whole.slot_limit = args.term.slot_limit;
    whole.position_stride =
        (args.term.position_keys ? args.term.position_keys : args.term.position_queries).row_stride;
  }

  // The longest sequences go first, so that no thread starts a long task when the others are done.
  // The query tiles of a sequence go from the last to the first, because under a causal mask the
  // last one has the most keys.
  const auto sequences = static_cast<int32_t>(args.queries.num_sequences);
  for (int32_t i = 0; i < sequences; ++i) scratch.order[i] = i;
  std::sort(scratch.order, scratch.order + sequences, [&](int32_t a, int32_t b) {
    return length_of(args.keys, a) > length_of(args.keys, b);
  });
  // Every tile prepares all keys for itself, so large tiles save work. They are used if every
  // thread then still gets enough tiles, and if no mask hides many of their keys from most of their
  // queries.
  int64_t tile_rows = kQueryTile;
  const auto count_tasks = [&] {
    scratch.first_task[0] = 0;
    for (int32_t i = 0; i < sequences; ++i) {
      const int64_t queries = length_of(args.queries, scratch.order[i]);
      const int64_t tiles = ceil_div(queries, tile_rows);
      scratch.first_task[i + 1] = scratch.first_task[i] + tiles * args.num_heads;
    }
    return scratch.first_task[sequences];
  };
  int64_t tasks = count_tasks();
  const bool masked = whole.left < kUnlimited || whole.right < kUnlimited;
  if (masked || tasks < kTasksPerThread * pool.threads()) {
    tile_rows = kSmallTile;
    tasks = count_tasks();
  }

  const size_t element = size_of(args.q.dtype);
  const auto kernel = kernels.attention[args.q.dtype == DType::kBFloat16];
  const int32_t group = args.num_heads / args.num_kv_heads;
  pool.parallel_for(tasks, [&](int64_t task, int worker) {
    const int64_t* first =
        std::upper_bound(scratch.first_task, scratch.first_task + sequences, task) - 1;
    const int32_t sequence = scratch.order[first - scratch.first_task];
    const int64_t queries = length_of(args.queries, sequence);
    const int64_t head = (task - *first) % args.num_heads;
    const int64_t tile = (first[1] - 1 - task) / args.num_heads;
    const int64_t query = args.queries.cu_seqlens[sequence] + tile * tile_rows;
    const int64_t key = args.keys.cu_seqlens[sequence];
    const auto at = [&](const TensorView& view, int64_t row, int64_t of_head) {
      return view.as<char>() +
             static_cast<size_t>(row * view.row_stride + of_head * args.head_dim) * element;
    };
    AttentionTile part = whole;
    part.q = at(args.q, query, head);
    part.out = at(args.out, query, head);
    part.k = at(args.k, key, head / group);
    part.v = at(args.v, key, head / group);
    part.queries = static_cast<int>(std::min(tile_rows, queries - tile * tile_rows));
    part.keys = length_of(args.keys, sequence);
    part.first_position = part.keys - queries + tile * tile_rows;
    if (args.term.kind == ScoreTermKind::kAlibi) part.slope = args.term.slopes + head;
    if (args.term.kind == ScoreTermKind::kBucketed) part.table = args.term.table + head;
    if (args.term.position_keys) part.position_keys = at(args.term.position_keys, 0, head);
    if (args.term.position_queries) part.position_queries = at(args.term.position_queries, 0, head);
    part.scratch = scratch.tiles + worker * scratch.tile_floats;
    const CpuTimer timer(CpuPart::kAttention);
    if (args.term.kind == ScoreTermKind::kGrid) {
      const int32_t* const grid = args.term.grids + 2 * int64_t{sequence};
      float* const table = scratch.grids + worker * scratch.grid_floats;
      resize_steps(args.term, head, args.num_heads, grid, table);
      part.grid_table = table;
      part.grid_rows = grid[0];
      part.grid_columns = grid[1];
    }
    kernel(part);
  });
}

}  // namespace packhorse::cpu
