// What gemm.cc and gemm_int8.cc are built from: oneDNN's descriptions of matmuls, packed weights,
// one runnable kernel. Included by those alone, so that no other file sees oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <vector>

#include "cpu/gemm.h"

namespace packhorse::cpu {

const dnnl::engine& engine();
dnnl::memory::data_type type_of(DType dtype);

/// The matmul of `rows` rows and `columns` of the shape's out_features; empty if there is none.
/// Without `weight` oneDNN chooses the layout of the weight. int8: x is of unsigned bytes.
dnnl::matmul::primitive_desc describe(const DenseShape& shape, int64_t rows, int64_t columns,
                                      const dnnl::memory::desc* weight = nullptr);

/// How a weight matrix lies in memory: all panels but the last are alike. The layout is that of the
/// plain layer; every kernel of the same matrix is made to take it.
struct PackedLayout {
  /// Throws RuntimeError when oneDNN has no matmul for it.
  PackedLayout(int64_t in_features, int64_t out_features, DType dtype);

  int64_t panels;
  int64_t columns;       // of every panel but the last
  int64_t last_columns;  // of the last
  dnnl::memory::desc full;
  dnnl::memory::desc last;
  size_t bytes;
};

/// Packs one panel of an [out_features, in_features] matrix of dtype `from` into its place in
/// `packed`.
void pack_panel(const PackedLayout& layout, const void* weight, DType from, int64_t panel,
                void* packed);

/// What each worker needs to run any kernel.
struct GemmWorkers {
  explicit GemmWorkers(int count);
  /// Makes every scratchpad at least so large.
  void reserve(size_t bytes);

  std::vector<dnnl::stream> streams;
  std::vector<std::vector<std::byte>> scratchpads;
};

/// One oneDNN primitive and, for each worker, the memory objects it is run with: making those anew
/// would cost more than a small call.
class Kernel {
 public:
  Kernel(const dnnl::matmul::primitive_desc& desc, GemmWorkers& workers);
  void run(const void* x, const void* weight, const float* bias, void* out, int worker,
           GemmWorkers& workers);

 private:
  struct Bound {
    dnnl::memory x, weight, bias, out, scratchpad;
  };
  dnnl::matmul primitive_;
  bool has_bias_;
  std::vector<Bound> bound_;
};

}  // namespace packhorse::cpu
