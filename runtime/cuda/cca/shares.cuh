// Division of the heads of compressed convolutional attention, and of their rows, among the blocks
// of one kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "ops/args/cca.h"

namespace packhorse::cuda {

/// The number of blocks of each head.
struct CcaShares {
  int query_blocks;  // for each head of queries
  int key_blocks;    // for each head of keys, which reads more

  int blocks(const CcaArgs& args) const {
    return query_blocks * args.num_heads + key_blocks * args.num_kv_heads;
  }
};

/// Shares for as many blocks as multiprocessors, where there are rows enough for them: a block has
/// at least `rows`. Heads of keys read all the heads of queries that see them: half as many blocks
/// again.
inline CcaShares shares_of(const CcaArgs& args, int sm_count, int64_t rows) {
  const int most = static_cast<int>(ceil_div(args.batch.num_tokens, rows));
  const int queries = std::max(1, 2 * sm_count / (2 * args.num_heads + 3 * args.num_kv_heads));
  const int keys = std::max(1, (sm_count - queries * args.num_heads) / args.num_kv_heads);
  return {std::min(queries, most), std::min(keys, most)};
}

/// Work of one block: a head, and one of the parts into which the head's rows are dealt. Blocks
/// that start together have the same rows of all heads.
struct BlockShare {
  int head;
  int part;
  int parts;

  __device__ BlockShare(const CcaArgs& args, const CcaShares& shares, int block) {
    const int query_blocks = shares.query_blocks * args.num_heads;
    const bool query = block < query_blocks;
    const int in_kind = query ? block : block - query_blocks;
    const int kinds = query ? args.num_heads : args.num_kv_heads;
    head = in_kind % kinds + (query ? 0 : args.num_heads);
    part = in_kind / kinds;
    parts = query ? shares.query_blocks : shares.key_blocks;
  }
};

/// The heads of the other kind whose latents enter the mean of a head: the head of keys that a head
/// of queries sees, or all heads of queries that see a head of keys.
struct OtherHeads {
  int first;
  int count;

  __device__ OtherHeads(const CcaArgs& args, int head) {
    const int group = args.num_heads / args.num_kv_heads;
    const bool query = head < args.num_heads;
    first = query ? args.num_heads + head / group : (head - args.num_heads) * group;
    count = query ? 1 : group;
  }
};

}  // namespace packhorse::cuda
