// Attention of new tokens over the pages of a key-value cache on CUDA. Shapes are checked by Ops,
// not here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/stream.h"
#include "ops/args/attention.h"

namespace packhorse::cuda {

/// Device memory that a launch uses, beside its arguments.
struct PagedLaunch {
  unsigned* counters = nullptr;  // [kPagedCounters]: zeros before and after every launch
  size_t workspace_bytes = 0;    // at args.workspace
};

/// Number of counters, one for each slab of rows and key/value head. Where there are more of these,
/// sequences are not split among blocks.
inline constexpr int64_t kPagedCounters = 16384;

/// Raises the shared memory limits of the kernels that find room on the current device. Called
/// once, before any launch.
void prepare_attention_pages(const DeviceCaps& caps);

/// Bytes of workspace for these bounds, and for every batch within them.
size_t attention_pages_workspace(int64_t num_tokens, int64_t max_kv_len, int64_t num_heads,
                                 int64_t head_dim);

/// True if a launch writes new keys and values, args.k and args.v, to their pages itself. If not,
/// they must lie there, and args.k and args.v be empty.
bool appends_to_pages(const AttentionArgs& args, const DeviceCaps& caps);

/// Computes attention over pages. The numbers of tokens, sequences and keys are bounds where
/// there are counts, so that one captured graph serves every step within them. Allocates nothing;
/// asynchronous on `stream`, may be captured. Without a workspace long sequences are not split
/// among blocks: slower, same bits. Throws RuntimeError.
void launch_attention_pages(const AttentionArgs& args, const PagedLaunch& how,
                            const KernelStream& stream);

}  // namespace packhorse::cuda
