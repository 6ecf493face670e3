#include "cpu/cca/cca.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/common/workspace.h"

namespace packhorse::cpu {
namespace {

// Scratch of a worker: pointers to the latents of its tokens, and its kernel's scratch.
struct Scratch {
  Scratch(Workspace& workspace, const CcaArgs& args)
      : taps(workspace.take<const void*>(kCcaRows * (args.reach() + 1))),
        floats(workspace.take<float>(convolve_scratch_floats(args.head_dim, args.grouped_width))) {}

  const void** taps;
  float* floats;
};

size_t scratch_bytes(const CcaArgs& args) {
  Workspace counted;
  const Scratch scratch(counted, args);
  return counted.bytes();
}

// A token's place in its sequence.
struct Place {
  int64_t sequence = 0;
  int64_t begin = 0;  // first row of the sequence in the batch
  int64_t end = 0;
  int64_t position = 0;  // position of the token in the whole sequence
};

// Calls body(token, place) for tokens [first, end).
template <class Body>
void for_tokens(const CcaArgs& args, int64_t first, int64_t end, Body body) {
  const int32_t* cu_seqlens = args.batch.cu_seqlens;
  const int32_t* next =
      std::upper_bound(cu_seqlens, cu_seqlens + args.batch.num_sequences + 1, first);
  for (int64_t token = first; token < end; ++token) {
    while (*next <= token) ++next;
    const int64_t sequence = next - cu_seqlens - 1;
    const int64_t length = args.pages ? args.pages.kv_lens[sequence] : *next - next[-1];
    body(token, Place{sequence, next[-1], *next, length - (*next - token)});
  }
}

// The row of the state of a position. Its page is in the table.
char* state_at(const LatentPages& pages, int64_t sequence, int64_t position) {
  const int64_t page = pages.table[sequence * pages.table_stride + position / kPageTokens];
  return row_at(pages.rows, page * pages.slots + position % kPageTokens % pages.slots);
}

// The latents of the token that is `back` tokens before this one: in the batch, in the state, or
// null before the beginning of the sequence.
const char* latents_before(const CcaArgs& args, int64_t token, const Place& place, int64_t back) {
  if (token - back >= place.begin) return row_at(args.latents, token - back);
  if (place.position - back < 0 || !args.pages) return nullptr;
  return state_at(args.pages, place.sequence, place.position - back);
}

void convolve_tokens(const CcaArgs& args, int64_t first, int64_t end, int64_t head,
                     const Scratch& scratch, const Kernels& kernels) {
  const int64_t reach = args.reach();
  for_tokens(args, first, end, [&](int64_t token, const Place& place) {
    const void** taps = scratch.taps + (token - first) * (reach + 1);
    for (int64_t back = reach; back >= 0; --back) {
      *taps++ = latents_before(args, token, place, back);
    }
  });
  const int64_t group = args.num_heads / args.num_kv_heads;
  const bool query = head < args.num_heads;
  const int64_t key = head - args.num_heads;
  const int64_t column = head * args.head_dim;
  const int64_t weights = head * args.grouped_width * args.head_dim;
  CcaHead task;
  task.taps = scratch.taps;
  task.rows = static_cast<int>(end - first);
  task.depthwise_width = args.depthwise_width;
  task.grouped_width = args.grouped_width;
  task.head_dim = args.head_dim;
  task.column = column;
  task.depthwise = args.depthwise + column;
  task.depthwise_stride = args.mixed_columns();
  task.depthwise_bias = args.depthwise_bias + column;
  task.grouped = row_at(args.grouped, weights);
  task.grouped_bias = args.grouped_bias + column;
  task.others_column = (query ? args.num_heads + head / group : key * group) * args.head_dim;
  task.num_others = query ? 1 : static_cast<int>(group);
  task.length =
      std::sqrt(static_cast<float>(args.model_dim)) * (query ? 1.0f : args.temperature[key]);
  if (args.rotation) {
    task.rotation = reinterpret_cast<const float*>(row_at(args.rotation, first));
    task.rotation_stride = args.rotation.row_stride;
    task.pairs = static_cast<int>(args.rotation.columns() / 2);
  }
  task.out = row_at(args.out, first) + static_cast<size_t>(column) * size_of(args.out.dtype);
  task.out_stride = args.out.row_stride;
  task.scratch = scratch.floats;
  kernels.convolve_head[index_of(args.latents.dtype)](task);
}

// Values: columns of the token itself, then columns of the token before.
void shift_values(const CcaArgs& args, int64_t first, int64_t end, const Kernels& kernels) {
  const size_t element = size_of(args.latents.dtype);
  const size_t begin = static_cast<size_t>(args.mixed_columns()) * element;
  const size_t own = static_cast<size_t>(args.delayed_column) * element;
  const int64_t delayed = args.value_columns() - args.delayed_column;
  const size_t bytes = static_cast<size_t>(delayed) * element;
  for_tokens(args, first, end, [&](int64_t token, const Place& place) {
    char* out = row_at(args.out, token) + begin;
    std::memcpy(out, row_at(args.latents, token) + begin, own);
    if (token > place.begin) {
      std::memcpy(out + own, row_at(args.latents, token - 1) + begin + own, bytes);
    } else if (args.pages && place.position > 0) {
      // A row of the state has no values that are not delayed.
      std::memcpy(out + own, state_at(args.pages, place.sequence, place.position - 1) + begin,
                  bytes);
    } else if (args.first_values != nullptr) {
      kernels.cast[0][index_of(args.out.dtype)](
          {args.first_values + args.delayed_column, out + own, delayed});
    } else {
      std::memset(out + own, 0, bytes);
    }
  });
}

// Keeps the tokens of which no later one of the same step takes the row.
void keep_latents(const CcaArgs& args, int64_t first, int64_t end) {
  const LatentPages& pages = args.pages;
  const size_t element = size_of(args.latents.dtype);
  const size_t mixed = static_cast<size_t>(args.mixed_columns()) * element;
  const size_t own = static_cast<size_t>(args.delayed_column) * element;
  for_tokens(args, first, end, [&](int64_t token, const Place& place) {
    const bool page_goes_on = place.position % kPageTokens + pages.slots < kPageTokens;
    if (place.position < 0 || (token + pages.slots < place.end && page_goes_on)) return;
    const char* from = row_at(args.latents, token);
    char* to = state_at(pages, place.sequence, place.position);
    std::memcpy(to, from, mixed);
    std::memcpy(to + mixed, from + mixed + own,
                static_cast<size_t>(args.state_columns()) * element - mixed);
  });
}

}  // namespace

size_t cca_workspace(const CcaArgs& args, int threads) {
  return static_cast<size_t>(threads) * scratch_bytes(args);
}

void cca(const CcaArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int64_t tokens = args.batch.num_tokens;
  const int64_t blocks = ceil_div(tokens, kCcaRows);
  const int64_t heads = args.num_heads + args.num_kv_heads;
  const size_t bytes = scratch_bytes(args);
  const auto block_at = [&](int64_t block, auto body) {
    const CpuTimer timer(CpuPart::kOther);
    body(block * kCcaRows, std::min(tokens, (block + 1) * kCcaRows));
  };
  pool.parallel_for(blocks * (heads + 1), [&](int64_t task, int worker) {
    block_at(task / (heads + 1), [&](int64_t first, int64_t end) {
      const int64_t head = task % (heads + 1);
      if (head == heads) return shift_values(args, first, end, kernels);
      Workspace own(static_cast<char*>(args.workspace) + static_cast<size_t>(worker) * bytes);
      convolve_tokens(args, first, end, head, Scratch(own, args), kernels);
    });
  });
  if (!args.pages) return;
  // Latents are kept in a loop of their own: by now all threads have read the rows that it
  // replaces.
  pool.parallel_for(blocks, [&](int64_t block, int) {
    block_at(block, [&](int64_t first, int64_t end) { keep_latents(args, first, end); });
  });
}

}  // namespace packhorse::cpu
