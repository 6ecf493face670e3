#include "cpu/moe/moe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/float_convert.h"
#include "core/math.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "cpu/common/workspace.h"
#include "cpu/gemm/linear.h"

namespace packhorse::cpu {
namespace {

constexpr int64_t kTaskRows = 32;
constexpr int64_t kPieceColumns = 256;  // columns that are held as float32

using Piece = std::array<float, kPieceColumns>;

size_t bytes_of(const TensorView& view, int64_t elements) {
  return static_cast<size_t>(elements) * size_of(view.dtype);
}

// Elements of a row as float32, and back.
void read(const TensorView& view, int64_t row, int64_t column, int64_t count, float* to) {
  to_float32(row_at(view, row) + bytes_of(view, column), view.dtype, to,
             static_cast<size_t>(count));
}
void write(const float* from, int64_t count, const TensorView& view, int64_t row, int64_t column) {
  from_float32(from, view.dtype, row_at(view, row) + bytes_of(view, column),
               static_cast<size_t>(count));
}

template <class Body>
void for_pieces(int64_t columns, Body body) {
  for (int64_t c = 0; c < columns; c += kPieceColumns)
    body(c, std::min(kPieceColumns, columns - c));
}

FeedForwardArgs block_of(const MoeArgs& args, const ExpertWeights& expert, const TensorView& rows) {
  FeedForwardArgs block;
  block.x = rows;
  block.up = expert.up;
  block.down = expert.down;
  block.activation = args.activation;
  block.gated = true;
  block.out = rows;
  return block;
}

// Rows in the order of their experts.
struct Scratch {
  Scratch(Workspace& workspace, const MoeArgs& args, int threads)
      : chosen(workspace.take<int32_t>(args.x.rows())),
        weights(workspace.take<float>(args.x.rows())),
        logits(workspace.take<float>(threads * args.num_classes)),
        places(workspace.take<int32_t>(args.x.rows())),
        ends(workspace.take<int32_t>(args.num_classes + 1)),
        rows(workspace.take(static_cast<int64_t>(bytes_of(args.x, args.x.size()))), args.x.dtype,
             args.x.rows(), args.x.columns()),
        block(workspace.take(static_cast<int64_t>(
            feed_forward_workspace(block_of(args, args.experts.front(), args.x), threads)))) {}

  int32_t* chosen;  // [rows] class of each row
  float* weights;   // [rows] its probability
  float* logits;    // [threads, classes]
  int32_t* places;  // [rows] where a row lies in `rows`
  int32_t* ends;    // [classes + 1] where those of a class begin, then where they end
  TensorView rows;
  void* block;
};

// Chooses the class of one row. `p` is scratch for its logits.
void choose(const MoeArgs& args, int64_t row, float* p, int32_t& chosen, float& weight) {
  const int32_t classes = args.num_classes;
  read(args.logits, row, 0, classes, p);
  const float largest = *std::max_element(p, p + classes);
  float sum = 0;
  for (int32_t c = 0; c < classes; ++c) {
    p[c] = std::exp(p[c] - largest);
    sum += p[c];
  }
  chosen = 0;
  for (int32_t c = 1; c < classes; ++c) {
    if (p[c] / sum + args.balance[c] > p[chosen] / sum + args.balance[chosen]) chosen = c;
  }
  weight = p[chosen] / sum;
}

// Counts the rows of each class, and gives each row its place among them.
void sort_rows(const MoeArgs& args, const Scratch& scratch) {
  int32_t* const next = scratch.ends;
  std::fill_n(next, args.num_classes + 1, 0);
  const int64_t rows = args.x.rows();
  for (int64_t row = 0; row < rows; ++row) ++next[scratch.chosen[row] + 1];
  for (int32_t c = 0; c < args.num_classes; ++c) next[c + 1] += next[c];
  for (int64_t row = 0; row < rows; ++row) scratch.places[row] = next[scratch.chosen[row]]++;
}

}  // namespace

size_t moe_workspace(const MoeArgs& args, int threads) {
  Workspace counted;
  const Scratch scratch(counted, args, threads);
  return counted.bytes();
}

void moe(const MoeArgs& args, GemmSet& gemms, const Kernels& kernels, ThreadPool& pool) {
  const int64_t rows = args.x.rows();
  const int64_t columns = args.x.columns();
  const auto experts = static_cast<int32_t>(args.experts.size());
  Workspace workspace(args.workspace);
  const Scratch scratch(workspace, args, pool.threads());
  pool.parallel_for(ceil_div(rows, kTaskRows), [&](int64_t task, int worker) {
    const CpuTimer timer(CpuPart::kOther);
    float* const logits = scratch.logits + int64_t{worker} * args.num_classes;
    const int64_t end = std::min(rows, (task + 1) * kTaskRows);
    for (int64_t row = task * kTaskRows; row < end; ++row) {
      choose(args, row, logits, scratch.chosen[row], scratch.weights[row]);
    }
  });
  sort_rows(args, scratch);
  for_each_row(rows, pool, [&](int64_t row) {
    std::memcpy(row_at(scratch.rows, scratch.places[row]), row_at(args.x, row),
                bytes_of(args.x, columns));
  });
  for (int32_t e = 0; e < experts; ++e) {
    const int64_t first = e == 0 ? 0 : scratch.ends[e - 1];
    const int64_t count = scratch.ends[e] - first;
    if (count == 0) continue;
    const TensorView own(row_at(scratch.rows, first), args.x.dtype, count, columns);
    FeedForwardArgs block = block_of(args, args.experts[static_cast<size_t>(e)], own);
    block.workspace = scratch.block;
    feed_forward(block, gemms, kernels, pool);
  }
  for_each_row(rows, pool, [&](int64_t row) {
    if (scratch.chosen[row] >= experts) {
      std::memset(row_at(args.out, row), 0, bytes_of(args.out, columns));
      return;
    }
    for_pieces(columns, [&](int64_t column, int64_t count) {
      Piece values;
      read(scratch.rows, scratch.places[row], column, count, values.data());
      for (int64_t i = 0; i < count; ++i) values[size_t(i)] *= scratch.weights[row];
      write(values.data(), count, args.out, row, column);
    });
  });
}

void add_scaled(const AddScaledArgs& args, ThreadPool& pool) {
  const auto scale = [](Piece& values, int64_t column, int64_t count, const float* shifts,
                        const float* scales) {
    if (shifts != nullptr) {
      for (int64_t i = 0; i < count; ++i) values[size_t(i)] += shifts[column + i];
    }
    if (scales != nullptr) {
      for (int64_t i = 0; i < count; ++i) values[size_t(i)] *= scales[column + i];
    }
  };
  for_each_row(args.x.rows(), pool, [&](int64_t row) {
    for_pieces(args.x.columns(), [&](int64_t column, int64_t count) {
      Piece values;
      read(args.x, row, column, count, values.data());
      scale(values, column, count, args.x_shift, args.x_scale);
      if (args.residual) {
        Piece residual;
        read(args.residual, row, column, count, residual.data());
        scale(residual, column, count, args.residual_shift, args.residual_scale);
        for (int64_t i = 0; i < count; ++i) values[size_t(i)] += residual[size_t(i)];
      }
      write(values.data(), count, args.out, row, column);
    });
  });
}

}  // namespace packhorse::cpu
