#include "cpu/rowwise/row_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/float_convert.h"
#include "core/format.h"
#include "cpu/common/groups_layout.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"
#include "packhorse/error.h"

namespace packhorse::cpu {
namespace {

// The number of rows in a task: enough to be worth claiming, few enough to spread over threads.
constexpr int64_t kTaskRows = 32;

// A spec allows no larger head.
constexpr int32_t kMostHeadDim = 4096;

// Calls body(first, end) for slices of [0, rows), in parallel.
template <class Body>
void for_rows(int64_t rows, ThreadPool& pool, Body body, CpuPart part = CpuPart::kOther) {
  pool.parallel_for((rows + kTaskRows - 1) / kTaskRows, [&](int64_t task, int) {
    const CpuTimer timer(part);
    body(task * kTaskRows, std::min(rows, (task + 1) * kTaskRows));
  });
}

// Writes scale * a row of 16-bit floats as float32.
void read_row(const TensorView& table, int64_t row, float scale, void* out) {
  auto* values = static_cast<float*>(out);
  const auto columns = static_cast<size_t>(table.columns());
  to_float32(row_at(table, row), table.dtype, values, columns);
  if (scale == 1) return;
  for (size_t i = 0; i < columns; ++i) values[i] *= scale;
}

// EmbedArgs::pos of one token after the other.
class Positions {
 public:
  // The first token, whose sequence begins at `begin`.
  Positions(const EmbedArgs& args, int64_t begin, int64_t token) : args_(args) {
    if (!skips()) return;
    for (int64_t i = begin; i < token; ++i) counted_ += args.ids[i] != args.skipped_id;
  }

  int64_t next(int64_t begin, int64_t token) {
    if (args_.position_ids != nullptr) return args_.position_ids[token];
    if (!skips()) return token - begin;
    if (token == begin) counted_ = 0;
    return args_.ids[token] == args_.skipped_id ? -1 : counted_++;
  }

 private:
  bool skips() const { return args_.skipped_id >= 0 && args_.position_ids == nullptr; }

  const EmbedArgs& args_;
  int64_t counted_ = 0;
};

}  // namespace

void embed(const EmbedArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int32_t* cu_seqlens = args.batch.cu_seqlens;
  for_rows(args.batch.num_tokens, pool, [&](int64_t first, int64_t end) {
    const int32_t* next =
        std::upper_bound(cu_seqlens, cu_seqlens + args.batch.num_sequences + 1, first);
    Positions positions(args, next[-1], first);
    EmbedRow task;
    task.columns = args.out.columns();
    task.norm = params_of(args.norm);
    for (int64_t token = first; token < end; ++token) {
      while (*next <= token) ++next;
      task.out = row_at(args.out, token);
      if (args.packed_word.data != nullptr) {
        read_groupwise_row(args.packed_word, args.ids[token], args.word_scale, args.out.dtype,
                           task.out);
        task.word = task.out;
      } else if (args.word.dtype != args.out.dtype) {
        read_row(args.word, args.ids[token], args.word_scale, task.out);
        task.word = task.out;
      } else {
        task.word = row_at(args.word, args.ids != nullptr ? args.ids[token] : token);
      }
      if (args.position) {
        task.position =
            row_at(args.position, positions.next(next[-1], token) + args.position_offset);
      }
      if (args.type) {
        task.type = row_at(args.type, args.type_ids != nullptr ? args.type_ids[token] : 0);
      }
      kernels.embed_row[index_of(args.out.dtype)](task);
    }
  });
}

void unfold(const UnfoldArgs& args, ThreadPool& pool) {
  const int32_t* cu_seqlens = args.batch.cu_seqlens;
  const size_t bytes = static_cast<size_t>(args.x.columns()) * size_of(args.x.dtype);
  for_rows(args.batch.num_tokens, pool, [&](int64_t first, int64_t end) {
    const int32_t* next =
        std::upper_bound(cu_seqlens, cu_seqlens + args.batch.num_sequences + 1, first);
    for (int64_t token = first; token < end; ++token) {
      while (*next <= token) ++next;
      char* out = row_at(args.out, token);
      for (int64_t from = token - args.width / 2; from <= token + args.width / 2; ++from) {
        if (from >= next[-1] && from < *next) {
          std::memcpy(out, row_at(args.x, from), bytes);
        } else {
          std::memset(out, 0, bytes);
        }
        out += bytes;
      }
    }
  });
}

void rotation(const RotationArgs& args, ThreadPool& pool) {
  const int32_t* cu_seqlens = args.batch.cu_seqlens;
  const int64_t pairs = args.out.columns() / 2;
  for_rows(args.batch.num_tokens, pool, [&](int64_t first, int64_t end) {
    const int32_t* next =
        std::upper_bound(cu_seqlens, cu_seqlens + args.batch.num_sequences + 1, first);
    for (int64_t token = first; token < end; ++token) {
      while (*next <= token) ++next;
      const int64_t position =
          args.position_ids != nullptr ? args.position_ids[token] : token - next[-1];
      auto* out = reinterpret_cast<float*>(row_at(args.out, token));
      for (int64_t j = 0; j < pairs; ++j) {
        const float angle = static_cast<float>(position) * args.frequencies[j];
        out[j] = std::cos(angle);
        out[pairs + j] = std::sin(angle);
      }
    }
  });
}

void rope(const RopeArgs& args, const Kernels& kernels, ThreadPool& pool) {
  if (args.head_dim > kMostHeadDim) {
    throw InvalidArgument(
        concat("rope: head_dim is ", args.head_dim, ", expected at most ", kMostHeadDim));
  }
  const auto kernel = kernels.rotate_row[index_of(args.q.dtype)];
  for_rows(args.q.rows(), pool, [&](int64_t first, int64_t end) {
    std::array<float, kMostHeadDim> scratch;
    RotateRow task;
    task.head_dim = args.head_dim;
    task.model_dim = args.model_dim;
    task.scratch = scratch.data();
    for (int64_t token = first; token < end; ++token) {
      if (args.rotation) {
        const auto* row = reinterpret_cast<const float*>(row_at(args.rotation, token));
        task.pairs = static_cast<int>(args.rotation.columns() / 2);
        task.cosines = row;
        task.sines = row + task.pairs;
      }
      task.x = row_at(args.q, token);
      task.heads = args.num_heads;
      task.norm = params_of(args.q_norm);
      kernel(task);
      task.x = row_at(args.k, token);
      task.heads = args.num_kv_heads;
      task.norm = params_of(args.k_norm);
      kernel(task);
    }
  });
}

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
  const int32_t* cu_seqlens = args.batch.cu_seqlens;
  const size_t element = size_of(args.k.dtype);
  for_rows(args.batch.num_tokens, pool, [&](int64_t first, int64_t end) {
    const int32_t* next =
        std::upper_bound(cu_seqlens, cu_seqlens + args.batch.num_sequences + 1, first);
    for (int64_t token = first; token < end; ++token) {
      while (*next <= token) ++next;
      const int64_t sequence = next - cu_seqlens - 1;
      const int64_t position = args.pages.kv_lens[sequence] - (*next - token);
      if (position < 0) continue;
      const int64_t page =
          args.pages.table[sequence * args.pages.table_stride + position / kPageTokens];
      for (int64_t head = 0; head < args.num_kv_heads; ++head) {
        const int64_t row =
            (page * args.num_kv_heads + head) * kPageTokens + position % kPageTokens;
        const size_t column = static_cast<size_t>(head * args.head_dim) * element;
        append(row_at(args.k, token) + column, args.pages.keys, args.pages.key_scales, row);
        append(row_at(args.v, token) + column, args.pages.values, args.pages.value_scales, row);
      }
    }
  });
}

void norm(const NormArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int dtype = index_of(args.x.dtype);
  for_rows(
      args.x.rows(), pool,
      [&](int64_t first, int64_t end) {
        NormRows task = norm_task(args.residual, args.norm, args.out, first, end - first);
        if (args.added) {
          task.added = row_at(args.added, first);
          task.added_stride = args.added.row_stride;
        }
        task.x = row_at(args.x, first);
        task.x_stride = args.x.row_stride;
        kernels.norm_rows[dtype][dtype](task);
      },
      CpuPart::kNorm);
}

namespace {

// The row of [first, end) that Pooling::kLast takes.
int64_t last_row(const PoolArgs& args, int64_t first, int64_t end) {
  int64_t row = end - 1;
  if (args.skipped_id < 0) return row;
  while (row >= first && args.ids[row] == args.skipped_id) --row;
  return std::max(row, first);
}

}  // namespace

void pool_sequences(const PoolArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const auto kernel = kernels.pool_rows[index_of(args.x.dtype)][index_of(args.out.dtype)];
  pool.parallel_for(args.batch.num_sequences, [&](int64_t sequence, int) {
    const CpuTimer timer(CpuPart::kOther);
    const int64_t first = args.batch.cu_seqlens[sequence];
    const int64_t length = args.batch.cu_seqlens[sequence + 1] - first;
    PoolRows task;
    task.x = row_at(args.x, first);
    task.x_stride = args.x.row_stride;
    task.out = row_at(args.out, sequence);
    task.rows = length;
    task.columns = args.out.columns();
    task.normalize = args.normalize;
    if (length > 0) {
      switch (args.pooling) {
        case Pooling::kLast:
          task.x = row_at(args.x, last_row(args, first, first + length));
          [[fallthrough]];
        case Pooling::kCls:
          task.rows = 1;
          break;
        case Pooling::kMean:
          task.factor = 1.0f / static_cast<float>(length);
          break;
        case Pooling::kMeanSqrt:
          task.factor = 1.0f / std::sqrt(static_cast<float>(length));
          break;
        case Pooling::kWeightedMean:
          task.factor = 2.0f / (static_cast<float>(length) * static_cast<float>(length + 1));
          task.weigh_rows = true;
          break;
        case Pooling::kMax:
          task.take_max = true;
          break;
      }
    }
    kernel(task);
  });
}

void cast(const CastArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int from = index_of(args.x.dtype);
  const int to = index_of(args.out.dtype);
  for_rows(args.x.rows(), pool, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      if (args.normalize) {  // pooling a sequence of one row normalises it
        PoolRows task;
        task.x = row_at(args.x, row);
        task.out = row_at(args.out, row);
        task.rows = 1;
        task.columns = args.x.columns();
        task.normalize = true;
        kernels.pool_rows[from][to](task);
        continue;
      }
      kernels.cast[from][to]({row_at(args.x, row), row_at(args.out, row), args.x.columns(),
                              args.scale, args.soft_cap});
    }
  });
}

void gather_rows(const GatherRowsArgs& args, ThreadPool& pool) {
  const size_t bytes = static_cast<size_t>(args.x.columns()) * size_of(args.x.dtype);
  const int64_t count = args.row_count != nullptr ? *args.row_count : args.out.rows();
  for_rows(args.out.rows(), pool, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      char* out = row_at(args.out, row);
      const char* from = row_at(args.x, args.rows != nullptr ? args.rows[row] : row);
      if (row >= count) {
        std::memset(out, 0, bytes);
      } else if (out != from) {
        std::memcpy(out, from, bytes);
      }
    }
  });
}

void clear_empty(const ClearEmptyArgs& args) {
  const size_t bytes = static_cast<size_t>(args.out.columns()) * size_of(args.out.dtype);
  for (int64_t b = 0; b < args.batch.num_sequences; ++b) {
    if (args.batch.cu_seqlens[b] != args.batch.cu_seqlens[b + 1]) continue;
    std::memset(row_at(args.out, b), 0, bytes);
  }
}

}  // namespace packhorse::cpu
