#include "cpu/rowwise/rowwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float_convert.h"
#include "cpu/common/groups_layout.h"
#include "cpu/common/profile.h"
#include "cpu/common/rows.h"

namespace packhorse::cpu {
namespace {

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
      if (args.row_numbers != nullptr && args.row_numbers[token] >= 0) {
        task.word = row_at(args.rows, args.row_numbers[token]);
      } else if (args.packed_word.data != nullptr) {
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
  const size_t bytes = static_cast<size_t>(args.x.columns()) * size_of(args.x.dtype);
  for_tokens(args.batch, pool, [&](int64_t token, const int32_t* sequence) {
    char* out = row_at(args.out, token);
    const int64_t middle = args.stride * token;
    for (int64_t from = middle - args.width / 2; from <= middle + args.width / 2; ++from) {
      if (from >= args.stride * sequence[0] && from < args.stride * sequence[1]) {
        std::memcpy(out, row_at(args.x, from), bytes);
      } else {
        std::memset(out, 0, bytes);
      }
      out += bytes;
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
        case Pooling::kSecond:
          task.rows = std::min<int64_t>(length - 1, 1);
          if (length > 1) task.x = row_at(args.x, first + 1);
          break;
        case Pooling::kPatchMean:
          task.rows = std::max<int64_t>(length - args.prefix, 0);
          if (task.rows == 0) break;
          task.x = row_at(args.x, first + args.prefix);
          task.factor = 1.0f / static_cast<float>(task.rows);
          break;
      }
    }
    kernel(task);
  });
}

void cast(const CastArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int from = index_of(args.x.dtype);
  const int to = index_of(args.out.dtype);
  const int64_t columns = args.x.columns();
  const size_t padding = static_cast<size_t>(args.padding) * size_of(args.out.dtype);
  const int64_t count = args.row_count != nullptr ? *args.row_count : args.out.rows();
  const int32_t* const offsets = args.cu_seqlens;
  for_rows(args.out.rows(), pool, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      char* const out = row_at(args.out, row);
      if (padding > 0) {
        std::memset(out + static_cast<size_t>(columns) * size_of(args.out.dtype), 0, padding);
      }
      if (row >= count || (offsets != nullptr && offsets[row] == offsets[row + 1])) {
        std::memset(out, 0, static_cast<size_t>(columns) * size_of(args.out.dtype));
        continue;
      }
      char* const x = row_at(args.x, args.rows != nullptr ? args.rows[row] : row);
      if (args.normalize) {  // pooling a sequence of one row normalises it
        PoolRows task;
        task.x = x;
        task.out = out;
        task.rows = 1;
        task.columns = columns;
        task.normalize = true;
        kernels.pool_rows[from][to](task);
      } else if (x != out || from != to || args.scale != 1 || args.soft_cap != 0) {
        kernels.cast[from][to]({x, out, columns, args.scale, args.soft_cap});
      }
    }
  });
}

void log_softmax(const LogSoftmaxArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const auto kernel = kernels.log_softmax_row[index_of(args.x.dtype)];
  pool.parallel_for(args.x.rows(), [&](int64_t row, int) {
    const CpuTimer timer(CpuPart::kOther);
    float* const out = reinterpret_cast<float*>(row_at(args.out, row));
    kernel({row_at(args.x, row), out, args.x.columns()});
  });
}

void activate(const ActivateArgs& args, const Kernels& kernels, ThreadPool& pool) {
  const int dtype = index_of(args.x.dtype);
  pool.parallel_for(args.x.rows(), [&](int64_t row, int) {
    if (args.slots != nullptr) {
      const int32_t slot = args.slots[row];
      if (slot < 0 || args.ranks[slot] == 0) return;
    }
    const CpuTimer timer(CpuPart::kOther);
    char* const x = row_at(args.x, row);
    char* const out = row_at(args.out, row);
    if (!args.gated) {
      return kernels.activate[dtype]({x, out, args.out.columns(), args.activation});
    }
    kernels.gate_rows[dtype]({.x = x,
                              .out = out,
                              .rows = 1,
                              .columns = args.out.columns(),
                              .activation = args.activation});
  });
}

}  // namespace packhorse::cpu
