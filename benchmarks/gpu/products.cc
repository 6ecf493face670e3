// Matrix products as CudaOps::gemm computes them, as C functions for products.py.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/skinny/skinny.h"
#include "cuda/gemm/splitk/splitk_cluster.h"

using namespace packhorse;
using namespace packhorse::cuda;

#define EXPORT extern "C" __attribute__((visibility("default")))

/// One product: out = residual + activation(a * weight^T + bias). products_library.py has the
/// same structure.
struct Product {
  const void* a;       // [rows, k] in 16 bits, or in e4m3 if there are column_scales
  const void* weight;  // [n, k], likewise
  const float* bias;   // [n] or null
  const void* residual;
  void* out;  // [rows, n]
  const int32_t* row_count;
  const float* row_scales;     // [rows]
  const float* column_scales;  // [n]
  float out_factor;            // not 0: the result is e4m3, of the sum times this
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t parts;
  int32_t sm_count;
  bool bfloat16;  // and not float16, where there are 16 bits
  bool gelu;
};

namespace {

GemmParams params_of(const Product& product) {
  GemmParams params;
  params.a = product.a;
  params.lda = product.k;
  params.weight = product.weight;
  params.bias = product.bias;
  params.residual = product.residual;
  params.ldr = product.n;
  params.out = product.out;
  params.ldo = product.n;
  params.rows = product.rows;
  params.row_count = product.row_count;
  params.n = product.n;
  params.k = product.k;
  params.dtype = product.out_factor != 0 ? DType::kFloat8
                 : product.bfloat16      ? DType::kBFloat16
                                         : DType::kFloat16;
  params.activation = product.gelu ? Activation::kGelu : Activation::kNone;
  params.sm_count = product.sm_count;
  params.parts = product.parts;
  params.float8.column_scales = product.column_scales;
  params.float8.row_scales = product.row_scales;
  params.float8.out_factor = product.out_factor;
  return params;
}

/// A number from the environment, by which tiles are compared without a build for each.
int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

const DeviceCaps& caps() {
  static const DeviceCaps caps = device_caps(0);
  return caps;
}

/// The tile of launch_gemm_splitk_cluster, if that computes the product. With up to 64 rows its
/// columns are as many as PRODUCTS_FEATURES says, a multiple of 8 up to 128, and its shared memory
/// is PRODUCTS_SHARED_KB, otherwise half of a multiprocessor's. PRODUCTS_CLUSTERS=0 leaves all
/// products to launch_gemm_sm90.
std::optional<GemmSplitkClusterTile> tile_of(const GemmParams& params) {
  if (setting("PRODUCTS_CLUSTERS", 1) == 0) return std::nullopt;
  const auto tile = cluster_tile_of(params, caps());
  if (!tile || params.rows > kMostClusterRows) return tile;
  const int features = setting("PRODUCTS_FEATURES", tile->features);
  const int kilobytes = setting("PRODUCTS_SHARED_KB", 0);
  if (features == tile->features && kilobytes == 0) return tile;
  const int64_t bytes = kilobytes == 0 ? kPairedSharedBytes : int64_t{1024} * kilobytes;
  return cluster_tile(params.rows, params.n, params.k, params.parts, params.parts, features, bytes);
}

}  // namespace

EXPORT int product_size() { return sizeof(Product); }

/// The parts in which a layer of few rows forms its sums.
EXPORT int parts_of(int n, int k, int sm_count) { return split_k(n, k, sm_count); }

/// Writes the name of the kernel that is chosen: "few", or the tile, and of a cluster its blocks.
EXPORT void name_kernel(const Product& product, char* name, size_t size) {
  const GemmParams params = params_of(product);
  const GemmConfig config =
      params.float8
          ? select_gemm_float8(shape_of(params), params.float8.out_factor != 0, params.sm_count)
          : select_gemm(shape_of(params), params.sm_count);
  if (!params.float8 && is_skinny(params)) {
    std::snprintf(name, size, "few");
  } else if (const auto tile = params.float8 ? std::nullopt : tile_of(params)) {
    std::snprintf(name, size, "%d of %dx%d, %d KB", tile->blocks, 64 * tile->groups, tile->features,
                  static_cast<int>(tile->shared_bytes / 1024));
  } else {
    const GemmTileCost& cost = cost_of(config.tile);
    std::snprintf(name, size, "%dx%d", cost.m, cost.n);
  }
}

/// Launches a product by the choice of CudaOps::gemm. Returns 0, or 1 after printing what went
/// wrong.
EXPORT int run_product(const Product& product, cudaStream_t handle) {
  try {
    const KernelStream stream{handle, caps()};
    const GemmParams params = params_of(product);
    if (params.float8) {
      launch_gemm_float8(params, stream);
    } else if (is_skinny(params)) {
      launch_gemm_skinny(params, stream);
    } else if (const auto tile = tile_of(params)) {
      launch_gemm_splitk_cluster(params, *tile, stream);
    } else {
      launch_gemm_sm90(params, stream);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
