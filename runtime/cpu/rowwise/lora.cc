#include <algorithm>

#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/rowwise/rowwise.h"

namespace packhorse::cpu {
namespace {

// Work of one task: so many dot products, or so many columns of `out`.
constexpr int64_t kTaskRanks = 16;
constexpr int64_t kTaskColumns = 1024;

int32_t rank_of(const int32_t* slots, const int32_t* ranks, int64_t row) {
  return slots[row] < 0 ? 0 : ranks[slots[row]];
}

// Elements from `index` on of a contiguous matrix.
const char* element_at(const TensorView& view, int64_t index) {
  return view.as<char>() + static_cast<size_t>(index) * size_of(view.dtype);
}

bool any_adapted(const int32_t* slots, const int32_t* ranks, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    if (rank_of(slots, ranks, row) > 0) return true;
  }
  return false;
}

}  // namespace

void add_lora(const LoraArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const LoraLayer& layer = args.layer;
  const int64_t rows = args.x.rows();
  if (!any_adapted(args.slots, layer.ranks, rows)) return;
  const int64_t in = args.x.columns();
  const int64_t out = args.out.columns();
  const int64_t parts = layer.num_parts;
  const int64_t shrinks = parts * ceil_div(layer.max_rank, kTaskRanks);  // tasks of a row
  pool.parallel_for(rows * shrinks, [&](int64_t task, int) {
    const int64_t row = task / shrinks;
    const int64_t part = task % shrinks % parts;
    const int64_t first = task % shrinks / parts * kTaskRanks;
    const int64_t count =
        std::min<int64_t>(kTaskRanks, rank_of(args.slots, layer.ranks, row) - first);
    if (count <= 0) return;
    const CpuTimer timer(CpuPart::kOther);
    const int64_t from = (args.slots[row] * parts + part) * layer.max_rank + first;
    float* to = args.workspace + row * layer.workspace_columns() + part * layer.max_rank + first;
    kernels.lora_shrink[index_of(args.x.dtype)](
        {row_at(args.x, row), element_at(layer.a, from * in), to, count, in});
  });
  const int64_t expands = ceil_div(out, kTaskColumns);
  pool.parallel_for(rows * expands, [&](int64_t task, int) {
    const int64_t row = task / expands;
    const int32_t rank = rank_of(args.slots, layer.ranks, row);
    if (rank == 0) return;
    const CpuTimer timer(CpuPart::kOther);
    const int64_t column = task % expands * kTaskColumns;
    LoraExpand expand;
    expand.inner = args.workspace + row * layer.workspace_columns();
    expand.b = element_at(layer.b, int64_t{args.slots[row]} * layer.max_rank * out + column);
    expand.parts = layer.parts != nullptr ? layer.parts + column / kPartColumns : nullptr;
    expand.out = row_at(args.out, row) + static_cast<size_t>(column) * size_of(args.out.dtype);
    expand.b_stride = out;
    expand.columns = std::min(kTaskColumns, out - column);
    expand.rank = rank;
    expand.max_rank = layer.max_rank;
    kernels.lora_expand[index_of(args.x.dtype)](expand);
  });
}

}  // namespace packhorse::cpu
