// The kernels that treat each row, or each sequence, by itself.
//
// Ops has checked the arguments. Unless a comment says otherwise, tensors are of one 16-bit dtype,
// of whole and aligned 16-byte accesses: columns and strides are multiples of 8, and computation is
// in float32. All are asynchronous on `stream`, allocate nothing, may be captured into a graph, and
// throw RuntimeError.
#pragma once

#include <cstdint>

#include "cuda/common/int8_rows.h"
#include "cuda/device/stream.h"
#include "ops/args/attention.h"
#include "ops/args/kv_cache.h"
#include "ops/args/lora.h"
#include "ops/args/rowwise.h"

namespace packhorse::cuda {

/// A large batch is divided evenly among the device's SMs.
void launch_embed(const EmbedArgs& args, const KernelStream& stream);

void launch_norm(const NormArgs& args, const KernelStream& stream);
/// The widest rows of launch_norm_float8.
inline constexpr int64_t kNormFloat8Columns = 4096;
/// Computes NormArgs with `quantized`: the float32 results are rounded both to `out`, if there is
/// one, and to e4m3. Columns and strides are multiples of 16. For devices of compute capability
/// 9.0. Throws InvalidArgument for rows wider than kNormFloat8Columns.
void launch_norm_float8(const NormArgs& args, const KernelStream& stream);

/// Applies the gates of feed-forward blocks whose GEMM does not, too.
void launch_activate(const ActivateArgs& args, const KernelStream& stream);
void launch_unfold(const UnfoldArgs& args, const KernelStream& stream);

/// `out` may be float32. Rows of x are read eight columns at a time, up to the next multiple of
/// eight. A sequence's rows are summed in an order that its length alone fixes. With `normalize`,
/// an embedding whose norm is below 1e-12 is divided by 1e-12.
void launch_pool(const PoolArgs& args, const KernelStream& stream);

/// Any number of columns, of any alignment; `out` is float32.
void launch_log_softmax(const LogSoftmaxArgs& args, const KernelStream& stream);

/// Converts any of float32, float16 and bfloat16 to any of them, with any number of columns and any
/// alignment. `x` may lie in page-locked host memory.
void launch_cast(const CastArgs& args, const KernelStream& stream);
/// True if rows consist of whole vectors of eight elements, aligned to 16 bytes.
inline bool takes_vectors(const TensorView& view) {
  return view.shape[1] % 8 == 0 && view.row_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

/// Writes each token's position as float32, or over a grid its two angles, which is all that
/// rotation.cuh needs beside the frequencies.
void launch_rotation(const RotationArgs& args, const KernelStream& stream);
/// Applies norms and rotation in place, and rounds once. The two columns of a pair lie side by
/// side, and head_dim is a multiple of 8 up to 256.
void launch_rope(const RopeArgs& args, const KernelStream& stream);

/// Copies keys and values of new tokens to pages, which have their dtype, or kFloat8 with scales
/// and 8-byte accesses.
void launch_append_kv_cache(const AppendKvCacheArgs& args, const KernelStream& stream);

/// If `heads` has a rotation, the products for the columns of its queries and keys are rotated
/// before they are added.
void launch_add_lora(const LoraArgs& args, const RopeArgs& heads, const KernelStream& stream);

/// out[i, j] = x[i, order[j]] for i < *row_count, or for all rows where that is null; the other
/// rows of `out` stay as they are. x [rows, any] and out [rows, columns] do not overlap; `order`,
/// each a column of x, is aligned to 16 bytes. `order` may be read while the kernels before this
/// one still run.
void launch_order_columns(const TensorView& x, const int32_t* order, const TensorView& out,
                          const int32_t* row_count, const KernelStream& stream);

/// Writes the rows of x before *row_count, or all where that is null, as bytes: each row is
/// offset + scale * q with q from 0 to 255, as in int8 on the CPU. There are at most
/// kMostInt8Columns columns.
void launch_quantize_rows(const TensorView& x, const RowBytes& out, const int32_t* row_count,
                          const KernelStream& stream);

}  // namespace packhorse::cuda
