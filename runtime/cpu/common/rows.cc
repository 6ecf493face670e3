#include "cpu/common/rows.h"

#include "cpu/common/profile.h"

namespace packhorse::cpu {

NormParams params_of(const NormWeight& norm) {
  return {norm.gamma, norm.beta, norm.eps, norm.kind == NormKind::kRms, norm.padding};
}

NormRows norm_task(const TensorView& residual, const NormWeight& norm, const TensorView& out,
                   int64_t first_row, int64_t rows) {
  NormRows task;
  if (residual) {
    task.residual = row_at(residual, first_row);
    task.residual_stride = residual.row_stride;
  }
  task.out = row_at(out, first_row);
  task.out_stride = out.row_stride;
  task.rows = rows;
  task.columns = out.columns();
  task.norm = params_of(norm);
  return task;
}

void RowsEnd::run(const float* sums, int64_t first_row, int64_t rows,
                  const Kernels& kernels) const {
  const CpuTimer timer(CpuPart::kNorm);
  NormRows task = norm_task(residual, norm, out, first_row, rows);
  task.x = sums;
  task.x_stride = out.columns();
  kernels.norm_rows[0][index_of(out.dtype)](task);
}

}  // namespace packhorse::cpu
