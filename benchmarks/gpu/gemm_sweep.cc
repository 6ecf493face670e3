// The Hopper GEMMs with every tile, as C functions for gemm_sweep.py, which compiles this file.
#include <cstdio>
#include <exception>

#include "cuda/gemm/gemm.h"

using namespace packhorse;
using namespace packhorse::cuda;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int tile_count() { return static_cast<int>(kGemmTiles.size()); }
EXPORT int tile_rows(int tile) { return kGemmTiles.at(static_cast<size_t>(tile)).m; }
EXPORT int tile_columns(int tile) { return kGemmTiles.at(static_cast<size_t>(tile)).n; }
EXPORT int params_size() { return sizeof(GemmParams); }

/// The tile that the session's graph for up to p.rows rows would take.
EXPORT int chosen_tile(const GemmParams& p) {
  return static_cast<int>(select_gemm(shape_of(p), p.sm_count).tile);
}

/// Returns 0, or 1 after printing what went wrong.
EXPORT int run_gemm(const GemmParams& p, int tile, cudaStream_t stream) {
  try {
    const auto chosen = static_cast<GemmTile>(tile);
    const GemmConfig config{.tile = chosen, .panel = panel_of(chosen, p.n, p.k)};
    static const DeviceCaps caps = device_caps(0);
    launch_gemm_sm90(p, config, {stream, caps});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
