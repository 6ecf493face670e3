// Dense layers: float32 by our own kernel (gemm_float.cc), bfloat16 and int8 through oneDNN's
// matmul, whose only use this is (gemm.cc, gemm_int8.cc, gemm_kernel.cc).
//
// oneDNN may choose another kernel, or another order of summation, when the number of rows changes.
// So rows are always given in blocks of a few fixed sizes, and columns in panels of a width that
// depends on the layer alone; every kernel runs on the thread that calls it. A block size, or a
// kernel over all panels at once, is used only if a probe shows that a row's bits depend on nothing
// but the row. That also bounds the number of kernels by the number of layer shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "cpu/thread_pool.h"
#include "ops/args.h"

namespace packhorse::cpu {

/// Rows of one block: the unit in which rows are given.
inline constexpr int64_t kBlockRows = 64;

/// Blocks that one call should take where there are plenty: reading the weights for each 64 rows
/// would slow the kernels down, those of 16 bit and of bytes above all.
inline constexpr int64_t blocks_at_once(DType dtype) { return dtype == DType::kFloat32 ? 2 : 4; }

/// Instruction sets, as oneDNN sees this machine; its variable ONEDNN_MAX_CPU_ISA caps them.
enum class Isa { kSse41, kAvx2, kAvx512 };
struct CpuFeatures {
  Isa isa = Isa::kSse41;
  bool bfloat16 = false;  // AVX512-BF16, which every processor with AMX-BF16 has too
  bool amx = false;       // AMX-BF16, which the system lets this process use
  bool vnni = false;      // sums of products of bytes in 32 bits, without a step of 16
};
CpuFeatures cpu_features();

/// Makes oneDNN run single-threaded in the calling thread; for worker threads.
void use_one_thread();

/// The same for a scope of a thread that belongs to the caller of the library.
class OneThreadScope {
 public:
  OneThreadScope();
  ~OneThreadScope();
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  int before_;
};

/// Columns of one panel; the last one may have fewer. Narrow panels let a small batch use all
/// threads; these are the narrowest that keep the kernels near their full rate.
int64_t panel_width(DType dtype);
int64_t panel_count(int64_t out_features, DType dtype);

/// Bytes of a weight matrix packed panel by panel.
size_t packed_bytes(int64_t in_features, int64_t out_features, DType dtype);
/// `weight` is float32 [out_features, in_features]; panels are packed in parallel.
void pack_weight(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                 void* packed, ThreadPool& pool);

struct GemmShape {
  int64_t in_features = 0;
  int64_t out_features = 0;
  DType dtype = DType::kFloat32;      // of x and the weight
  DType out_dtype = DType::kFloat32;  // sums are float32 in any case
  Activation activation = Activation::kNone;
  bool bias = false;

  auto key() const {
    return std::tuple(in_features, out_features, dtype, out_dtype, activation, bias);
  }
  bool operator<(const GemmShape& other) const { return key() < other.key(); }
};

/// Whether the kernels of a dtype take any number of rows, and rows apart; neither changes a bit.
constexpr bool takes_any_rows(DType dtype) { return dtype == DType::kFloat32; }

/// out = activation(x W^T + bias) for one block of rows, or several full ones.
class Gemm {
 public:
  struct Block {
    const void* x = nullptr;  // [readable_rows(rows), in_features]
    int64_t x_stride = 0;     // elements between rows; 0: contiguous, as where not takes_any_rows
    int64_t rows = 0;         // at most kBlockRows, or a multiple of it (run), or takes_any_rows
    const void* weight = nullptr;
    const float* bias = nullptr;
    void* out = nullptr;     // [out_rows, out_features]
    int64_t out_stride = 0;  // elements between rows
    int64_t out_rows = 0;    // at least rows; rows up to this number may be overwritten
    void* tile = nullptr;    // tile_bytes of scratch
    int worker = 0;
  };

  virtual ~Gemm() = default;
  /// The block size used for `rows` <= kBlockRows rows. x is read up to this row.
  virtual int64_t readable_rows(int64_t rows) const = 0;
  virtual void run(const Block& block) const = 0;
  virtual void run_panel(const Block& block, int64_t panel) const = 0;

  static size_t tile_bytes(DType dtype) {
    return static_cast<size_t>(kBlockRows * panel_width(dtype)) * sizeof(float);
  }
};

struct GemmWorkers;
class Int8Gemm;

/// The kernels of every layer shape met so far, made when first asked for.
class GemmSet {
 public:
  explicit GemmSet(int workers);
  ~GemmSet();
  /// Not thread-safe. Throws RuntimeError when oneDNN has no kernel for the shape.
  const Gemm& get(const GemmShape& shape);
  const Int8Gemm& get_int8(int64_t in_features, int64_t out_features);

 private:
  std::unique_ptr<GemmWorkers> workers_;
  std::map<GemmShape, std::unique_ptr<Gemm>> gemms_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Int8Gemm>> int8_gemms_;
};

}  // namespace packhorse::cpu
