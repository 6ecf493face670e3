#include <array>
#include <cmath>

#include "core/format.h"
#include "cpu/common/rows.h"
#include "cpu/rowwise/rowwise.h"
#include "packhorse/error.h"

namespace packhorse::cpu {

void rotation(const RotationArgs& args, ThreadPool& pool) {
  const int64_t pairs = args.out.columns() / 2;
  for_tokens(args.batch, pool, [&](int64_t token, const int32_t* sequence) {
    const int64_t position =
        args.position_ids != nullptr ? args.position_ids[token] : token - sequence[0];
    auto* out = reinterpret_cast<float*>(row_at(args.out, token));
    for (int64_t j = 0; j < pairs; ++j) {
      const float angle = static_cast<float>(position) * args.frequencies[j];
      out[j] = std::cos(angle);
      out[pairs + j] = std::sin(angle);
    }
  });
}

void rope(const RopeArgs& args, const Kernels& kernels, ThreadPool& pool) {
  constexpr int32_t kMostHeadDim = 4096;  // a spec allows no larger head
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

}  // namespace packhorse::cpu
