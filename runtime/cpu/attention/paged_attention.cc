#include <algorithm>

#include "core/math.h"
#include "cpu/attention/attention.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/common/workspace.h"

namespace packhorse::cpu {
namespace {

static_assert(kPageKeys == kPageTokens && kChunkKeys % kPageKeys == 0);

constexpr int64_t kTasksPerThread = 4;
/// Tiles that are divided into chunks, and chunks that are in work at a time, for each thread.
constexpr int64_t kDividedPerThread = 2;
constexpr int64_t kChunksPerThread = 4;

// Rows of a small tile: that of a sequence whose rows would not fill a large one, or where the
// threads need more tasks. Only small tiles are divided.
constexpr int64_t kSmallTile = kQueryGroup;

SoftmaxState take_state(Workspace& workspace, int64_t head_dim, int64_t stride) {
  SoftmaxState state;
  state.sums = workspace.take<float>(head_dim * stride);
  state.maximum = workspace.take<float>(stride);
  state.denominator = workspace.take<float>(stride);
  state.stride = stride;
  return state;
}

struct PerThread {
  float* tile = nullptr;
  SoftmaxState chunk;  // state of the chunk in work
  SoftmaxState whole;  // merged state of the chunks so far
};

struct Scratch {
  Scratch(Workspace& workspace, int64_t num_sequences, int64_t head_dim, int threads)
      : units(workspace.take<int32_t>(num_sequences + 1)),
        order(workspace.take<int32_t>(num_sequences)),
        first_task(workspace.take<int64_t>(num_sequences + 1)),
        divided(workspace.take<int64_t>(kDividedPerThread * threads)),
        first_chunk(workspace.take<int64_t>(kDividedPerThread * threads + 1)),
        head_dim_(head_dim),
        threads_(threads),
        thread_bytes_(bytes_of_thread(head_dim)),
        state_bytes_(bytes_of_state(head_dim)),
        of_threads_(workspace.take(threads * static_cast<int64_t>(thread_bytes_))),
        states_(workspace.take((kDividedPerThread + kChunksPerThread) * threads *
                               static_cast<int64_t>(state_bytes_))) {}

  PerThread of_thread(int worker) const {
    Workspace workspace(of_threads_ + static_cast<size_t>(worker) * thread_bytes_);
    return take_thread(workspace, head_dim_);
  }
  /// Returns the merged state of divided tile `i`, over its chunks so far.
  SoftmaxState of_divided(int64_t i) const { return state_at(i); }
  /// Returns the state of chunk `i` of those in work.
  SoftmaxState of_chunk(int64_t i) const { return state_at(kDividedPerThread * threads_ + i); }

  int32_t* units;        // [num_sequences + 1] first sequence of each unit
  int32_t* order;        // [num_sequences] units by falling number of keys
  int64_t* first_task;   // [num_sequences + 1] in that order
  int64_t* divided;      // tasks whose chunks are divided among threads
  int64_t* first_chunk;  // first chunk of each divided task, in a row of all their chunks

 private:
  static PerThread take_thread(Workspace& workspace, int64_t head_dim) {
    PerThread result;
    result.tile = workspace.take<float>(paged_scratch_floats(head_dim));
    result.chunk = take_state(workspace, head_dim, kQueryTile);
    result.whole = take_state(workspace, head_dim, kQueryTile);
    return result;
  }
  static size_t bytes_of_thread(int64_t head_dim) {
    Workspace counting;
    take_thread(counting, head_dim);
    return counting.bytes();
  }
  static size_t bytes_of_state(int64_t head_dim) {
    Workspace counting;
    take_state(counting, head_dim, kSmallTile);
    return counting.bytes();
  }
  SoftmaxState state_at(int64_t i) const {
    Workspace workspace(states_ + static_cast<size_t>(i) * state_bytes_);
    return take_state(workspace, head_dim_, kSmallTile);
  }

  int64_t head_dim_;
  int threads_;
  size_t thread_bytes_, state_bytes_;
  std::byte* of_threads_;
  std::byte* states_;
};

/// A tile of rows, and the chunks that any of them sees.
struct Task {
  PagedTile tile;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t chunks() const { return end - begin; }
};

// Attention in units: neighbouring sequences whose queries see the same keys, as beams of one
// source do in cross attention, are one, so that keys are read once for all of them. A row is the
// same expression whatever rows are beside it.
class PagedAttention {
 public:
  PagedAttention(const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool)
      : args_(args),
        kernels_(kernels),
        pool_(pool),
        workspace_(args.workspace),
        scratch_(workspace_, args.queries.num_sequences, args.head_dim, pool.threads()),
        group_(args.num_heads / args.num_kv_heads) {}

  void run() {
    join_sequences();
    order_tasks();
    choose_divided();
    for (int64_t done = 0; done < chunks_divided(); done += kChunksPerThread * pool_.threads()) {
      attend_divided(done, std::min(chunks_divided(), done + kChunksPerThread * pool_.threads()));
    }
    pool_.parallel_for(num_tasks_, [&](int64_t i, int worker) {
      const Task task = task_at(i);
      if (!is_divided(task)) attend(task, worker);
    });
  }

 private:
  // True if a sequence has the keys of the one before. Where the mask is causal, queries of both
  // would stand at other positions in one unit.
  bool joins(int64_t sequence) const {
    const PagedKvCache& pages = args_.pages;
    if (args_.mask.causal || pages.kv_lens[sequence - 1] != pages.kv_lens[sequence]) return false;
    const int32_t* table = pages.table + sequence * pages.table_stride;
    const int64_t count = ceil_div(int64_t{pages.kv_lens[sequence]}, kPageTokens);
    return std::equal(table, table + count, table - pages.table_stride);
  }
  void join_sequences() {
    for (int64_t sequence = 0; sequence < args_.queries.num_sequences; ++sequence) {
      if (sequence > 0 && joins(sequence)) continue;
      scratch_.units[num_units_++] = static_cast<int32_t>(sequence);
    }
    scratch_.units[num_units_] = static_cast<int32_t>(args_.queries.num_sequences);
  }
  int64_t rows_of(int32_t unit) const {
    const int32_t* cu_seqlens = args_.queries.cu_seqlens;
    return int64_t{cu_seqlens[scratch_.units[unit + 1]] - cu_seqlens[scratch_.units[unit]]} *
           group_;
  }
  int64_t tile_rows(int64_t rows) const { return rows > kQueryTile ? tile_rows_ : kSmallTile; }

  int64_t count_tasks() {
    scratch_.first_task[0] = 0;
    for (int32_t i = 0; i < num_units_; ++i) {
      const int64_t rows = rows_of(scratch_.order[i]);
      scratch_.first_task[i + 1] =
          scratch_.first_task[i] + ceil_div(rows, tile_rows(rows)) * args_.num_kv_heads;
    }
    return scratch_.first_task[num_units_];
  }

  // Longest first, so that no thread starts a long task when the others are done. A tile reads all
  // keys for itself, so tiles are large where every thread gets enough of them.
  void order_tasks() {
    for (int32_t i = 0; i < num_units_; ++i) scratch_.order[i] = i;
    std::sort(scratch_.order, scratch_.order + num_units_, [&](int32_t a, int32_t b) {
      return args_.pages.kv_lens[scratch_.units[a]] > args_.pages.kv_lens[scratch_.units[b]];
    });
    num_tasks_ = count_tasks();
    while (num_tasks_ < kTasksPerThread * pool_.threads() && tile_rows_ > kSmallTile) {
      tile_rows_ /= 2;
      num_tasks_ = count_tasks();
    }
  }

  // A tile that would take more than its share of a thread's time is divided into its chunks.
  void choose_divided() {
    int64_t chunks = 0;
    for (int64_t i = 0; i < num_tasks_; ++i) chunks += task_at(i).chunks();
    most_chunks_ = chunks / (kDividedPerThread * pool_.threads());
    scratch_.first_chunk[0] = 0;
    for (int64_t i = 0; i < num_tasks_; ++i) {
      const Task task = task_at(i);
      if (!is_divided(task)) continue;
      scratch_.divided[num_divided_] = i;
      scratch_.first_chunk[num_divided_ + 1] = chunks_divided() + task.chunks();
      ++num_divided_;
    }
  }
  int64_t chunks_divided() const { return scratch_.first_chunk[num_divided_]; }
  // Returns whether a tile is divided. These are fewer tiles than kDividedPerThread times the
  // threads.
  bool is_divided(const Task& task) const {
    return pool_.threads() > 1 && task.chunks() > std::max<int64_t>(most_chunks_, 1) &&
           task.tile.rows <= kSmallTile;
  }

  // The tiles of a unit go from the last, which sees most keys, to the first.
  Task task_at(int64_t index) const {
    const int64_t* first =
        std::upper_bound(scratch_.first_task, scratch_.first_task + num_units_, index) - 1;
    const int32_t unit = scratch_.order[first - scratch_.first_task];
    const int32_t sequence = scratch_.units[unit];
    const int64_t head = (index - *first) % args_.num_kv_heads;
    const int64_t rows = rows_of(unit);
    const int64_t kv_len = args_.pages.kv_lens[sequence];
    const int64_t query = args_.queries.cu_seqlens[sequence];
    const int64_t column = head * group_ * args_.head_dim;
    Task task;
    PagedTile& tile = task.tile;
    tile.q = row_at(args_.q, query) + static_cast<size_t>(column) * size_of(args_.q.dtype);
    tile.out = row_at(args_.out, query) + static_cast<size_t>(column) * size_of(args_.out.dtype);
    tile.q_stride = args_.q.row_stride;
    tile.out_stride = args_.out.row_stride;
    tile.first_row = (first[1] - 1 - index) / args_.num_kv_heads * tile_rows(rows);
    tile.rows = static_cast<int>(std::min(tile_rows(rows), rows - tile.first_row));
    tile.group = static_cast<int>(group_);
    tile.head_dim = args_.head_dim;
    tile.bfloat16 = args_.pages.keys.dtype == DType::kBFloat16 &&
                    (args_.q.dtype == DType::kBFloat16 || args_.rounded);
    tile.causal = args_.mask.causal;
    tile.first_position = tile.causal ? kv_len - rows / group_ : kv_len - 1;
    tile.keys = row_at(args_.pages.keys, head * kPageTokens);
    tile.values = row_at(args_.pages.values, head * kPageTokens);
    tile.page_stride = args_.num_kv_heads * kPageTokens * args_.head_dim;
    if (args_.pages.key_scales) {
      tile.key_scales = args_.pages.key_scales.as<const float>() + head * kPageTokens;
      tile.value_scales = args_.pages.value_scales.as<const float>() + head * kPageTokens;
    }
    tile.table = args_.pages.table + sequence * args_.pages.table_stride;
    tile.left = args_.mask.window_left < 0 ? kUnlimited : args_.mask.window_left;
    tile.scale = args_.scale;
    tile.soft_cap = args_.soft_cap;
    if (args_.term.kind == ScoreTermKind::kAlibi) tile.slopes = args_.term.slopes + head * group_;
    if (args_.term.kind == ScoreTermKind::kBucketed) {
      tile.max_distance = args_.term.max_distance;
      tile.by_distance = args_.term.by_distance + head * group_ * (tile.max_distance + 1);
    }
    const auto position = [&](int64_t row) {
      return tile.first_position + (tile.causal ? row / group_ : 0);
    };
    const int64_t lowest = position(tile.first_row);
    const int64_t highest = position(tile.first_row + tile.rows - 1);
    task.begin = std::max<int64_t>(lowest - tile.left, 0) / kChunkKeys;
    task.end = std::max(ceil_div(highest + 1, kChunkKeys), task.begin);
    return task;
  }

  void attend(Task task, int worker) {
    const CpuTimer timer(CpuPart::kAttention);
    const PerThread own = scratch_.of_thread(worker);
    task.tile.scratch = own.tile;
    pack(task.tile);
    if (task.chunks() == 0) clear(own.whole, task.tile.rows);
    for (int64_t chunk = task.begin; chunk < task.end; ++chunk) {
      if (chunk == task.begin) {  // merged with nothing it would stay as it is
        attend_chunk(task.tile, chunk, own.whole);
        continue;
      }
      attend_chunk(task.tile, chunk, own.chunk);
      merge(own.whole, own.chunk, task.tile);
    }
    write(task.tile, own.whole);
  }

  // Chunks [begin, end) of those of all divided tiles; tiles whose last chunk is among them are
  // written.
  void attend_divided(int64_t begin, int64_t end) {
    pool_.parallel_for(end - begin, [&](int64_t i, int worker) {
      const CpuTimer timer(CpuPart::kAttention);
      const int64_t* first =
          std::upper_bound(scratch_.first_chunk, scratch_.first_chunk + num_divided_, begin + i) -
          1;
      Task task = task_at(scratch_.divided[first - scratch_.first_chunk]);
      const PerThread own = scratch_.of_thread(worker);
      task.tile.scratch = own.tile;
      pack(task.tile);
      attend_chunk(task.tile, task.begin + begin + i - *first, own.chunk);
      clear(scratch_.of_chunk(i), task.tile.rows);
      merge(scratch_.of_chunk(i), own.chunk, task.tile);
    });
    pool_.parallel_for(num_divided_, [&](int64_t t, int) {
      const CpuTimer timer(CpuPart::kAttention);
      const int64_t first = scratch_.first_chunk[t], last = scratch_.first_chunk[t + 1];
      const Task task = task_at(scratch_.divided[t]);
      const SoftmaxState whole = scratch_.of_divided(t);
      if (begin <= first && first < end) clear(whole, task.tile.rows);
      for (int64_t i = std::max(begin, first); i < std::min(end, last); ++i) {
        merge(whole, scratch_.of_chunk(i - begin), task.tile);
      }
      if (begin < last && last <= end) write(task.tile, whole);
    });
  }

  void pack(const PagedTile& tile) const {
    kernels_.pack_paged_queries[index_of(args_.q.dtype)](tile);
  }
  void attend_chunk(const PagedTile& tile, int64_t chunk, const SoftmaxState& state) const {
    const DType dtype = args_.pages.keys.dtype;
    kernels_.attend_chunk[dtype == DType::kFloat8 ? 2 : index_of(dtype)](tile, chunk, state);
  }
  void clear(const SoftmaxState& state, int rows) const {
    kernels_.clear_state(state, rows, args_.head_dim);
  }
  void merge(const SoftmaxState& into, const SoftmaxState& next, const PagedTile& tile) const {
    kernels_.merge_chunks(into, next, tile.rows, tile.head_dim);
  }
  void write(const PagedTile& tile, const SoftmaxState& state) const {
    kernels_.write_paged_rows[index_of(args_.out.dtype)](tile, state);
  }

  const AttentionArgs& args_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  Workspace workspace_;
  const Scratch scratch_;
  const int64_t group_;
  int64_t tile_rows_ = kQueryTile;
  int32_t num_units_ = 0;
  int64_t num_tasks_ = 0;
  int64_t num_divided_ = 0;
  int64_t most_chunks_ = 0;
};

}  // namespace

size_t paged_attention_workspace(const AttentionArgs& args, int threads) {
  Workspace workspace;
  Scratch(workspace, args.queries.num_sequences, args.head_dim, threads);
  return workspace.bytes();
}

void paged_attention(const AttentionArgs& args, const Kernels& kernels, ThreadPool& pool) {
  PagedAttention(args, kernels, pool).run();
}

}  // namespace packhorse::cpu
