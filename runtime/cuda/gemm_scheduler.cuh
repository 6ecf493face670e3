// Persistent tile scheduler whose row count may live in device memory.
//
// CUTLASS's own persistent scheduler takes the problem from the host, so a captured graph would
// compute its whole bucket. This one offers what CUTLASS's ping-pong kernel asks of a scheduler,
// without clusters, over a plain order of our own: columns fastest inside panels of `panel` tile
// columns, panel after panel. A panel's weights stay in L2 while the rows pass by.
#pragma once

#include <cutlass/arch/grid_dependency_control.h>

#include <cutlass/gemm/kernel/tile_scheduler.hpp>

namespace packhorse::cuda {

struct RowCountScheduler {};  // the tag that CUTLASS kernels are instantiated with

template <class TileShape>
class RowCountTileScheduler {
 public:
  static constexpr bool IsDynamicPersistent = false;
  static constexpr int kTileM = cute::size<0>(TileShape{});
  static constexpr int kTileN = cute::size<1>(TileShape{});

  struct Arguments {
    const int32_t* row_count = nullptr;  // device memory, or null: all rows of the problem
    int panel = 0;                       // tile columns of one panel
  };
  struct Params {
    const int32_t* row_count;
    int rows;
    int tiles_n;
    int panel;
  };
  struct WorkTileInfo {
    int32_t M_idx = 0;
    int32_t N_idx = 0;
    int32_t L_idx = 0;
    bool valid = false;
    CUTLASS_DEVICE bool is_valid() const { return valid; }
  };

  // Required by the kernel, unused by a static scheduler.
  struct CLCResponse {};
  using Pipeline = cutlass::PipelineEmpty;
  using ThrottlePipeline = cutlass::PipelineEmpty;
  struct SharedStorage {
    CUTLASS_DEVICE Pipeline::SharedStorage pipeline() { return {}; }
    CUTLASS_DEVICE ThrottlePipeline::SharedStorage throttle_pipeline() { return {}; }
    CUTLASS_DEVICE CLCResponse* data() { return nullptr; }
  };

  template <class Problem, class ClusterShape, class... Unused>
  static Params to_underlying_arguments(Problem problem, TileShape, ClusterShape,
                                        const cutlass::KernelHardwareInfo&, const Arguments& args,
                                        Unused&&...) {
    const int tiles_n = (static_cast<int>(cute::get<1>(problem)) + kTileN - 1) / kTileN;
    return {args.row_count, static_cast<int>(cute::get<0>(problem)), tiles_n,
            cute::min(args.panel, tiles_n)};
  }
  template <class Problem, class Accumulator, class... Unused>
  static size_t get_workspace_size(Unused&&...) {
    return 0;
  }

  CUTLASS_DEVICE explicit RowCountTileScheduler(const Params& params)
      : params_(params), grid_(gridDim.x), index_(blockIdx.x) {
    int rows = params.rows;
    if (params.row_count != nullptr) {
      // The kernel before this one may be the one that writes it.
      cutlass::arch::wait_on_dependent_grids();
      rows = *params.row_count;
    }
    tiles_m_ = (rows + kTileM - 1) / kTileM;
  }

  template <class ClusterShape>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(ClusterShape) const {
    return get_current_work();
  }
  CUTLASS_DEVICE WorkTileInfo get_current_work() const { return tile(index_); }
  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) { index_ += grid_ * count; }
  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo&, uint32_t count = 1) const {
    return !tile(index_ + grid_ * count).is_valid();
  }

 private:
  CUTLASS_DEVICE WorkTileInfo tile(int index) const {
    int m, n;
    bool valid;
    if (params_.panel == params_.tiles_n) {
      m = index / params_.tiles_n;
      n = index - m * params_.tiles_n;
      // The first wave always runs: its order does not depend on the row count, so its loads need
      // not wait for that. The grid never exceeds the tiles of `rows`.
      valid = index < grid_ || m < tiles_m_;
    } else {
      const int panel_index = index / cute::max(1, tiles_m_ * params_.panel);
      const int first_n = panel_index * params_.panel;
      const int in_panel = index - tiles_m_ * first_n;
      const int width = cute::max(1, cute::min(params_.panel, params_.tiles_n - first_n));
      m = in_panel / width;
      n = first_n + in_panel - m * width;
      valid = tiles_m_ > 0 && first_n < params_.tiles_n;
    }
    return {m, n, 0, valid};
  }

  const Params& params_;
  int tiles_m_;
  int grid_;
  int index_;  // tile that this block (or its second warpgroup) works on
};

}  // namespace packhorse::cuda

namespace cutlass::gemm::kernel::detail {

template <class TileShape, class ClusterShape, uint32_t stages>
struct TileSchedulerSelector<packhorse::cuda::RowCountScheduler, arch::Sm90, TileShape,
                             ClusterShape, stages> {
  using Scheduler = packhorse::cuda::RowCountTileScheduler<TileShape>;
};

}  // namespace cutlass::gemm::kernel::detail
