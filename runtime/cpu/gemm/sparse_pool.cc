#include "cpu/gemm/sparse_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/workspace.h"

namespace packhorse::cpu {
namespace {

struct Scratch {
  Scratch(Workspace& workspace, int64_t in_features, DType dtype, int threads)
      : panel(panel_width(dtype)),
        last_rows(takes_any_rows(dtype) ? nullptr
                                        : workspace.take(kBlockRows * in_features *
                                                         static_cast<int64_t>(size_of(dtype)))),
        logits(workspace.take<float>(threads * kBlockRows * panel)),
        largest(workspace.take<float>(threads * panel)) {}

  int64_t panel;
  std::byte* last_rows;  // [64, in_features] rows that do not fill a block, or null
  float* logits;         // [threads, 64, panel]
  float* largest;        // [threads, panel]
};

// Returns the larger number, or NaN if either is NaN.
float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }

// Returns early because hardly any logit is above zero.
float weight_of(float logit, bool twice) {
  if (logit <= 0) return 0;
  const float weight = std::log1p(logit);
  return twice ? std::log1p(weight) : weight;
}

}  // namespace

size_t sparse_pool_workspace(int64_t in_features, DType dtype, int threads) {
  Workspace workspace;
  Scratch(workspace, in_features, dtype, threads);
  return workspace.bytes();
}

void sparse_pool(const SparsePoolArgs& args, GemmSet& gemms, const Kernels& kernels,
                 ThreadPool& pool) {
  const int64_t in_features = args.weight.in_features;
  const int64_t rows = args.x.rows();
  const size_t row_bytes = static_cast<size_t>(in_features) * size_of(args.x.dtype);
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, in_features, args.x.dtype, pool.threads());
  const Gemm& gemm = gemms.get({.in_features = in_features,
                                .out_features = args.weight.out_features,
                                .dtype = args.x.dtype,
                                .weight = args.weight.dtype,
                                .bias = args.weight.bias != nullptr});

  const int64_t whole = scratch.last_rows == nullptr ? rows : rows / kBlockRows * kBlockRows;
  if (whole < rows) {
    const size_t there = static_cast<size_t>(rows - whole) * row_bytes;
    std::memcpy(scratch.last_rows, args.x.as<char>() + static_cast<size_t>(whole) * row_bytes,
                there);
    std::memset(scratch.last_rows + there, 0, kBlockRows * row_bytes - there);
  }
  const int32_t* cu_seqlens = args.batch.cu_seqlens;
  const int64_t panels = ceil_div(args.out.columns(), scratch.panel);
  pool.parallel_for(panels, [&](int64_t panel, int worker) {
    const int64_t begin = panel * scratch.panel;
    const int64_t columns = std::min(scratch.panel, args.out.columns() - begin);
    float* logits = scratch.logits + worker * kBlockRows * scratch.panel;
    float* largest = scratch.largest + worker * scratch.panel;
    const auto out_of = [&](int64_t b) {
      return args.out.as<float>() + b * args.out.columns() + begin;
    };
    Gemm::Block block;
    block.weight = args.weight.data;
    block.bias = args.weight.bias;
    block.out_stride = std::min(scratch.panel, args.weight.out_features - begin);
    block.out = logits;
    block.first_column = begin;
    block.out_rows = kBlockRows;
    block.worker = worker;
    for (int64_t b = 0; b < args.batch.num_sequences; ++b) {
      if (cu_seqlens[b] == cu_seqlens[b + 1]) std::fill_n(out_of(b), columns, 0.0f);
    }
    int64_t sequence = 0;
    for (int64_t first = 0; first < rows; first += kBlockRows) {
      const int64_t end = std::min(rows, first + kBlockRows);
      block.rows = end - first;
      block.x = first < whole ? args.x.as<char>() + static_cast<size_t>(first) * row_bytes
                              : static_cast<const void*>(scratch.last_rows);
      gemm.run_columns(block, begin, block.out_stride);
      const CpuTimer timer(CpuPart::kOther);
      for (int64_t row = first; row < end;) {
        while (cu_seqlens[sequence + 1] <= row) ++sequence;
        const int64_t last = std::min<int64_t>(end, cu_seqlens[sequence + 1]);
        const bool starts = cu_seqlens[sequence] == row;
        float* out = out_of(sequence);
        if (args.sum) {
          // Rows are added one by one, because a sum of partial sums would depend on where blocks
          // end.
          if (starts) std::fill_n(out, columns, 0.0f);
          for (; row < last; ++row) {
            const float* logit = logits + (row - first) * block.out_stride;
            for (int64_t i = 0; i < columns; ++i) out[i] += weight_of(logit[i], args.twice);
          }
          continue;
        }
        PoolRows task;
        task.x = logits + (row - first) * block.out_stride;
        task.out = starts ? out : largest;
        task.x_stride = block.out_stride;
        task.rows = last - row;
        task.columns = columns;
        task.take_max = true;
        kernels.pool_rows[0][0](task);
        if (!starts) {
          for (int64_t i = 0; i < columns; ++i) out[i] = max_or_nan(out[i], largest[i]);
        }
        if (last == cu_seqlens[sequence + 1]) {
          for (int64_t i = 0; i < columns; ++i) out[i] = weight_of(out[i], args.twice);
        }
        row = last;
      }
    }
  });
}

}  // namespace packhorse::cpu
