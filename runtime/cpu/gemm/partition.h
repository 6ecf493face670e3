// Division of a batch's rows among threads. This is arithmetic only, so it can be tested without a
// product.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "cpu/gemm/gemm_shape.h"

namespace packhorse::cpu {

inline int64_t block_count(int64_t rows) { return ceil_div(rows, kBlockRows); }

// If parts may have any number of rows, all rows of a batch of no more than this are split: every
// weight is read by one thread only, and a thread that gets less time than others takes fewer
// columns. Above, there are parts enough for that.
inline constexpr int64_t kMostSplitRows = 512;

// Divides the rows of a batch into parts of whole rows, then into blocks that all threads split by
// columns.
class Partition {
 public:
  // `most` is the largest number of rows in a part. `any_rows` says whether parts need not consist
  // of blocks.
  Partition(int64_t rows, int64_t most, bool any_rows, int threads) : rows_(rows) {
    if (any_rows) {
      if (threads > 1 && rows <= kMostSplitRows) {
        split_ = block_count(rows);
      } else {
        whole_rows_ = rows;
        parts_ = rows == 0 ? 0 : threads * ceil_div(rows, threads * most);
      }
      return;
    }
    // The remaining blocks, too few to give every thread one more, are split. Full blocks are
    // divided into equal parts; a partial block is a part of its own.
    split_ = block_count(rows) % threads;
    whole_rows_ = std::min(rows, (block_count(rows) - split_) * kBlockRows);
    full_blocks_ = whole_rows_ / kBlockRows;
    const int64_t per_thread = ceil_div(full_blocks_, threads) * kBlockRows;
    full_parts_ = std::min(full_blocks_, threads * ceil_div(per_thread, most));
    parts_ = full_parts_ + (whole_rows_ % kBlockRows != 0 ? 1 : 0);
    whole_blocks_ = true;
  }

  int64_t parts() const { return parts_; }
  int64_t first_row(int64_t part) const {
    if (!whole_blocks_) return whole_rows_ * part / parts_;
    if (part > full_parts_ || full_parts_ == 0) return part == 0 ? 0 : whole_rows_;
    return (part * (full_blocks_ / full_parts_) + std::min(part, full_blocks_ % full_parts_)) *
           kBlockRows;
  }

  int64_t split() const { return split_; }
  // The most blocks that are split in any batch of up to `rows` rows.
  static int64_t split_capacity(int64_t rows, bool any_rows, int threads) {
    if (threads == 1) return 0;
    return any_rows ? block_count(std::min(rows, kMostSplitRows))
                    : std::min<int64_t>(block_count(rows), threads - 1);
  }
  int64_t first_row_of_split(int64_t block) const {
    if (whole_blocks_) return std::min(rows_, whole_rows_ + block * kBlockRows);
    return rows_ * block / split_;
  }

 private:
  int64_t rows_;
  int64_t whole_rows_ = 0;
  int64_t parts_ = 0;
  int64_t split_ = 0;
  bool whole_blocks_ = false;
  int64_t full_blocks_ = 0;
  int64_t full_parts_ = 0;
};

// Returns the place of a task among `count`, if the places are divided into streams of nearly equal
// length, and tasks in their order take the next place of one stream after another.
inline int64_t place_in_stream(int64_t task, int64_t count, int64_t streams) {
  const int64_t stream = task % streams;
  return stream * (count / streams) + std::min(stream, count % streams) + task / streams;
}

}  // namespace packhorse::cpu
