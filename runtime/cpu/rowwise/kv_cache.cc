#include "cpu/common/rows.h"
#include "cpu/rowwise/rowwise.h"

namespace packhorse::cpu {

void append_kv_cache(const AppendKvCacheArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int dtype = index_of(args.k.dtype);
  const bool float8 = args.pages.keys.dtype == DType::kFloat8;
  const auto cast = kernels.cast[dtype][index_of(args.pages.keys.dtype)];
  const auto append = [&](void* from, const TensorView& to, const TensorView& scales, int64_t row) {
    if (!float8) return cast({from, row_at(to, row), args.head_dim});
    kernels.quantize_head[dtype]({.x = from,
                                  .out = reinterpret_cast<uint8_t*>(row_at(to, row)),
                                  .scale = scales.as<float>() + row,
                                  .head_dim = args.head_dim});
  };
  const size_t element = size_of(args.k.dtype);
  for_tokens(args.batch, pool, [&](int64_t token, const int32_t* sequence) {
    const int64_t b = sequence - args.batch.cu_seqlens;
    const int64_t position = args.pages.kv_lens[b] - (sequence[1] - token);
    if (position < 0) return;
    const int64_t page = args.pages.table[b * args.pages.table_stride + position / kPageTokens];
    for (int64_t head = 0; head < args.num_kv_heads; ++head) {
      const int64_t row = (page * args.num_kv_heads + head) * kPageTokens + position % kPageTokens;
      const size_t column = static_cast<size_t>(head * args.head_dim) * element;
      append(row_at(args.k, token) + column, args.pages.keys, args.pages.key_scales, row);
      append(row_at(args.v, token) + column, args.pages.values, args.pages.value_scales, row);
    }
  });
}

}  // namespace packhorse::cpu
