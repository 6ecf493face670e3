#include <array>
#include <cmath>
#include <numbers>

#include "core/format.h"
#include "cpu/common/rows.h"
#include "cpu/rowwise/rowwise.h"
#include "packhorse/error.h"

namespace packhorse::cpu {

namespace {

// 2 pi times the centre of a cell, where -1 and 1 are the ends of the grid. In float32, as models
// were trained.
float angle_of(int64_t cell, int32_t cells) {
  const float centre = (static_cast<float>(cell) + 0.5f) / static_cast<float>(cells);
  return 2.0f * std::numbers::pi_v<float> * (2.0f * centre - 1.0f);
}

void grid_rotation(const RotationArgs& args, ThreadPool& pool) {
  const int64_t pairs = args.out.columns() / 2;
  for_tokens(args.batch, pool, [&](int64_t token, const int32_t* sequence) {
    auto* out = reinterpret_cast<float*>(row_at(args.out, token));
    const int64_t cell = token - sequence[0] - args.prefix;
    std::array<float, 2> angles = {0, 0};
    if (cell >= 0) {
      const int32_t* const grid = args.grids + 2 * (sequence - args.batch.cu_seqlens);
      angles = {angle_of(cell / grid[1], grid[0]), angle_of(cell % grid[1], grid[1])};
    }
    for (int64_t j = 0; j < pairs; ++j) {
      const float angle = angles[j < pairs / 2 ? 0 : 1] * args.frequencies[j];
      out[j] = std::cos(angle);
      out[pairs + j] = std::sin(angle);
    }
  });
}

}  // namespace

void rotation(const RotationArgs& args, ThreadPool& pool) {
  if (args.grids != nullptr) return grid_rotation(args, pool);
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
