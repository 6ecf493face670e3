// The memory that a chain of dense layers (linear.cc) uses between its steps, and its size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/common/groups_layout.h"
#include "cpu/common/workspace.h"
#include "cpu/gemm/gemm_shape.h"
#include "cpu/gemm/partition.h"
#include "ops/args/dense.h"

namespace packhorse::cpu {

// The most bytes that the inner rows of a part take in float32, so that they stay in the
// second-level cache together with a panel of weights.
inline constexpr int64_t kPartBytes = 1 << 20;

// The sizes and dtypes of a chain.
struct Sizes {
  int64_t rows = 0;
  int64_t in_features = 0;
  /// 0 for a linear layer; twice the intermediate size for a gated feed-forward block.
  int64_t up_features = 0;
  int64_t inner_features = 0;  // 0 for a linear layer
  int64_t out_features = 0;
  DType weights = DType::kFloat32;  // product_dtype
  DType floats = DType::kFloat32;   // dtype of x and of the output of `up`
  bool wide = false;                // WeightGroups::wide_inputs of every layer

  bool gated() const { return up_features != inner_features; }
  bool in_groups() const { return weights == DType::kUInt8; }
  bool quantized() const { return weights == DType::kInt8 || in_groups(); }
  bool any_rows() const { return takes_any_rows(weights); }
  // Returns whether a product may need a copy of rows of x, because they lie apart, are too few or
  // collide.
  bool may_copy() const { return any_rows() ? rows_collide(in_features) : !quantized(); }
  // Elements between the beginnings of rows: of copies of x, of the output of `up`, and of that
  // after the gate.
  int64_t stride_of(int64_t columns) const { return any_rows() ? spread_stride(columns) : columns; }
  int64_t up_stride() const { return stride_of(up_features); }
  int64_t inner_stride() const { return stride_of(inner_features); }
  int64_t float_bytes(int64_t count) const { return count * static_cast<int64_t>(size_of(floats)); }
};

inline Sizes sizes_of(const LinearArgs& args) {
  return {.rows = args.x.rows(),
          .in_features = args.weight.in_features,
          .out_features = args.weight.out_features,
          .weights = product_dtype(args.weight.dtype, args.x.dtype),
          .floats = args.x.dtype,
          .wide = args.weight.groups.wide_inputs};
}

inline Sizes sizes_of(const FeedForwardArgs& args) {
  return {.rows = args.x.rows(),
          .in_features = args.up.in_features,
          .up_features = args.up.out_features,
          .inner_features = args.down.in_features,
          .out_features = args.down.out_features,
          .weights = product_dtype(args.up.dtype, args.x.dtype),
          .floats = args.x.dtype,
          .wide = args.up.groups.wide_inputs};
}

// The number of blocks that a worker takes at once.
inline int64_t blocks_of_part(const Sizes& sizes) {
  int64_t most = blocks_at_once(sizes.weights);
  if (sizes.any_rows() && sizes.up_features != 0) {
    most = std::clamp<int64_t>(kPartBytes / sizes.float_bytes(kBlockRows * sizes.up_features), 1,
                               most);
  }
  return std::min(most, block_count(sizes.rows));
}

// Rows in the form that a product reads: floats, or bytes with their scales and offsets.
struct Source {
  const void* data = nullptr;
  int64_t stride = 0;
  const float* scales = nullptr;
  const float* offsets = nullptr;
  const int32_t* sums = nullptr;
};

// Quantised rows for a product with quantised weights. There are none if weights are floats. Each
// row has one scale and one offset or, for weights in groups, is quantised in blocks.
struct Quantized {
  Quantized(Workspace& workspace, int64_t rows, int64_t row_features, const Sizes& sizes)
      : features(row_features),
        blocks(sizes.in_groups() ? group_blocks(features, sizes.wide) : 0),
        columns(sizes.in_groups() ? blocks * block_bytes(sizes.wide) : features),
        values(workspace.take<uint8_t>(rows * columns)),
        scales(workspace.take<float>(rows * std::max<int64_t>(1, blocks))),
        offsets(workspace.take<float>(sizes.in_groups() ? 0 : rows)),
        sums(workspace.take<int32_t>(sizes.wide ? 0 : 2 * rows * blocks)) {}

  Quantized from(int64_t row) const {
    Quantized rows = *this;
    rows.values += row * columns;
    rows.scales += row * std::max<int64_t>(1, blocks);
    rows.offsets += row;
    rows.sums += 2 * row * blocks;
    return rows;
  }
  Source source() const { return {values, columns, scales, offsets, sums}; }

  int64_t features;
  int64_t blocks;   // blocks of a row; 0: rows have one scale each
  int64_t columns;  // bytes of a row
  uint8_t* values;  // [rows, columns], signed where rows have blocks, perhaps of 16 bits
  float* scales;    // [rows], or [rows, blocks]
  float* offsets;   // [rows]
  int32_t* sums;    // [rows, 2 * blocks], but not for 16 bits
};

// The buffers of a chain for the rows of a part or of a split block.
struct Buffers {
  Buffers(Workspace& workspace, int64_t rows, const Sizes& sizes, bool split)
      : x(workspace, sizes.quantized() ? rows : 0, sizes.in_features, sizes),
        up(workspace.take(sizes.float_bytes(rows * sizes.up_stride()))),
        gated(split && sizes.gated() && !sizes.quantized()
                  ? workspace.take(sizes.float_bytes(rows * sizes.inner_stride()))
                  : up),
        inner(workspace, sizes.quantized() ? rows : 0, sizes.inner_features, sizes),
        result(workspace.take<float>(rows * sizes.out_features)) {}

  Quantized x;
  std::byte* up;     // [rows, up_features], rows up_stride() apart
  std::byte* gated;  // [rows, inner_features], rows inner_stride() apart; equals `up` unless
                     // threads gate panels separately
  Quantized inner;
  float* result;  // [rows, out_features], before residual and norm
};

// An array of Buffers, each for the same number of rows.
class BufferArray {
 public:
  BufferArray(Workspace& workspace, int64_t count, int64_t rows, const Sizes& sizes, bool split)
      : rows_(rows), sizes_(sizes), split_(split) {
    Workspace one;
    Buffers(one, rows, sizes, split);
    bytes_ = static_cast<int64_t>(one.bytes());
    data_ = workspace.take(count * bytes_);
  }
  Buffers operator[](int64_t i) const {
    Workspace own(data_ + i * bytes_);
    return Buffers(own, rows_, sizes_, split_);
  }

 private:
  int64_t rows_;
  Sizes sizes_;
  bool split_;
  int64_t bytes_;
  std::byte* data_;
};

struct Scratch {
  Scratch(Workspace& workspace, const Sizes& sizes, int threads)
      : part_rows(blocks_of_part(sizes) * kBlockRows),
        copy_bytes(sizes.may_copy()
                       ? sizes.float_bytes((sizes.any_rows() ? part_rows : kBlockRows) *
                                           sizes.stride_of(sizes.in_features))
                       : 0),
        tile_bytes(static_cast<int64_t>(Gemm::tile_bytes(sizes.weights))),
        copied(workspace.take<int64_t>(sizes.quantized() ? 0 : threads)),
        copies(workspace.take(threads * copy_bytes)),
        tiles(workspace.take(threads * tile_bytes)),
        workers(workspace, threads, part_rows, sizes, false),
        split(workspace, Partition::split_capacity(sizes.rows, sizes.any_rows(), threads),
              kBlockRows, sizes, true) {}

  int64_t part_rows;  // the most rows that a worker takes at once
  int64_t copy_bytes, tile_bytes;
  /// [threads] the first row of x that a worker's copy holds, or -1. Only for float weights.
  int64_t* copied;
  std::byte* copies;    // [threads, copy_bytes] copies of rows that cannot be read in place
  std::byte* tiles;     // [threads, tile_bytes]
  BufferArray workers;  // [threads]
  BufferArray split;    // [split blocks]
};

}  // namespace packhorse::cpu
