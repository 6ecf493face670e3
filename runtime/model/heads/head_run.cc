#include "model/heads/head_run.h"

namespace packhorse {

TensorView HeadArena::matrix(const std::string& name, int64_t rows, int64_t columns) const {
  return arena.take_matrix(name, rows, columns, dtype);
}

size_t HeadArena::workspace_of(int64_t rows, const LinearWeight& weight) const {
  LinearArgs args;
  args.x = TensorView(nullptr, dtype, rows, weight.in_features);
  args.weight = weight;
  return ops.linear_workspace(args);
}

void* HeadArena::workspace(const std::string& name, size_t bytes) const {
  return bytes > 0 ? arena.take(name, bytes) : nullptr;
}

void HeadRun::dense(const TensorView& x, const LinearWeight& weight, const TensorView& out,
                    void* workspace, Activation activation, const NormWeight& norm,
                    const TensorView& residual) const {
  ops.linear({.x = x,
              .weight = weight,
              .activation = activation,
              .residual = residual,
              .norm = norm,
              .out = out,
              .workspace = workspace});
}

void HeadRun::pool(Pooling pooling, const TensorView& out, bool normalize,
                   int32_t skipped_id) const {
  ops.pool({.x = hidden.column_slice(0, out.columns()),
            .batch = tokens.batch,
            .pooling = pooling,
            .normalize = normalize,
            .out = out,
            .ids = tokens.ids,
            .skipped_id = skipped_id,
            .prefix = tokens.prefix});
}

void HeadRun::pool_all(const std::vector<Pooling>& poolings, const TensorView& out) const {
  const int64_t width = out.columns() / static_cast<int64_t>(poolings.size());
  int64_t column = 0;
  for (const Pooling pooling : poolings) {
    pool(pooling, out.column_slice(column, width));
    column += width;
  }
}

void HeadRun::finish(const TensorView& x, const TensorView& out, OutputRows per,
                     bool normalize) const {
  const bool of_sequences = per == OutputRows::kSequences;
  if (x.data == out.data && !normalize && !of_sequences && counts == nullptr) return;
  ops.cast({.x = x.column_slice(0, out.columns()),
            .out = out,
            .normalize = normalize,
            .row_count = of_sequences ? nullptr : counts,
            .cu_seqlens = of_sequences ? tokens.batch.cu_seqlens : nullptr});
}

}  // namespace packhorse
