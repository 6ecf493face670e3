// The common parts of onednn_gemm.cc and onednn_int8.cc: oneDNN's descriptions of matmuls, packed
// weights, and runnable kernels. Matrix products are all that oneDNN is used for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "cpu/gemm/gemm_engine.h"
#include "cpu/isa/kernels.h"

namespace packhorse::cpu {

const dnnl::engine& engine();
dnnl::memory::data_type type_of(DType dtype);

/// Returns oneDNN's description of a matmul with `rows` rows and `columns` of the shape's
/// out_features, or an empty one if there is none. Without `weight`, oneDNN chooses the layout of
/// the weight. For int8, x consists of unsigned bytes.
dnnl::matmul::primitive_desc describe(const DenseShape& shape, int64_t rows, int64_t columns,
                                      const dnnl::memory::desc* weight = nullptr);

/// The layout of a packed weight matrix. All panels but the last are alike. The layout is that of
/// the layer without bias and activation; every kernel for the same matrix is made to accept it.
struct PackedLayout {
  /// Throws RuntimeError if oneDNN has no matmul for it.
  PackedLayout(int64_t in_features, int64_t out_features, DType dtype);

  int64_t panels;
  int64_t columns;       // columns of every panel but the last
  int64_t last_columns;  // columns of the last panel
  dnnl::memory::desc full;
  dnnl::memory::desc last;
  size_t panel_bytes;   // bytes of every panel but the last
  size_t stripe_bytes;  // bytes of kStripeColumns columns; only if is_in_stripes
  size_t bytes;

  /// Returns the byte at which the stripe with a column begins; only if is_in_stripes.
  size_t stripe_offset(int64_t column) const {
    return static_cast<size_t>(column / kStripeColumns) * stripe_bytes;
  }
};

/// Returns whether oneDNN's layout is that of MultiplyStripe, stripe after stripe.
bool is_in_stripes(const PackedLayout& layout, DType dtype);

/// Packs one panel of a matrix [out_features, in_features] of dtype `from` into its place in
/// `packed`.
void pack_panel(const PackedLayout& layout, const void* weight, DType from, int64_t panel,
                void* packed);

/// State of each worker thread that oneDNN's kernels need: a stream and a scratchpad.
struct GemmWorkers {
  explicit GemmWorkers(int count);
  /// Grows every scratchpad to at least `bytes` bytes.
  void reserve(size_t bytes);

  std::vector<dnnl::stream> streams;
  std::vector<std::vector<std::byte>> scratchpads;
};

/// One oneDNN primitive and, for each worker, the memory objects that it runs with. Creating those
/// for each call would cost more than a small call itself.
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

/// Makes an int8 dense layer. x is read up to the next multiple of 64 rows. Throws RuntimeError if
/// oneDNN has no kernel, or none that is exact.
std::unique_ptr<Gemm> make_onednn_int8_gemm(const DenseShape& shape, GemmWorkers& workers);

}  // namespace packhorse::cpu
