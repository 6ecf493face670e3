// Which GEMM kernel runs a shape: pure host functions, testable without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "core/format.h"

namespace packhorse::cuda {

/// Hopper kernels, by tile rows x columns of the output. All are ping-pong kernels without
/// clusters: two warpgroups, each with a tile of its own, one multiplying while the other stores.
enum class GemmTile : uint8_t { k64x32, k64x64, k64x128, k128x96, k128x128, k128x192 };

/// What one tile costs, fitted to an H200's measurements (benchmarks/results/gemm_h200_*.csv):
/// microseconds = fixed + waves (per_k k + per_tile), waves = tiles / SMs, rounded up.
struct GemmTileCost {
  GemmTile tile;
  int m;
  int n;
  double fixed;       // us: launch, first loads, last store
  double per_k;       // us per element of k
  double per_tile;    // us: the part of the epilogue that does not overlap
  const char* place;  // where it wins, and why the others lose there
};

inline constexpr std::array<GemmTileCost, 6> kGemmTiles = {{
    {GemmTile::k64x32, 64, 32, 3.35, 0.00159, 0.08,
     "up to 256 rows of narrow outputs: the only tile that gives most SMs a part of the weight to "
     "stream; past one wave it loads 1.5 times the bytes of 64x64 for the same arithmetic"},
    {GemmTile::k64x64, 64, 64, 2.99, 0.00208, 0.46,
     "up to about 600 rows: larger tiles leave SMs without work, 64x32 loads more"},
    {GemmTile::k64x128, 64, 128, 2.90, 0.00290, 1.20,
     "one wave where 64x64 needs two and 128x128 leaves a third of the SMs idle"},
    {GemmTile::k128x96, 128, 96, 3.46, 0.00412, 1.58,
     "768 columns and few waves: eight whole tiles a row, where the last wave of 128x128 is a "
     "third full; its 32-column epilogue steps cost more elsewhere"},
    {GemmTile::k128x128, 128, 128, 3.61, 0.00549, 0.90,
     "most large shapes. Lost to it in the sweep: 128x256 and 256x128 with both warpgroups on one "
     "tile, which stop multiplying during every epilogue (3 to 15 % slower at k <= 1024); "
     "clusters of two, which gain nothing while both operands stay in L2"},
    {GemmTile::k128x192, 128, 192, 3.42, 0.00791, 4.84,
     "large k: a sixth fewer bytes loaded than 128x128; at small k its epilogue shows"},
}};

inline const GemmTileCost& cost_of(GemmTile tile) { return kGemmTiles[static_cast<size_t>(tile)]; }

/// Predicted microseconds.
inline double predict(const GemmTileCost& cost, int64_t rows, int64_t n, int64_t k, int sm_count) {
  const int64_t tiles = ((rows + cost.m - 1) / cost.m) * ((n + cost.n - 1) / cost.n);
  const int64_t waves = (tiles + sm_count - 1) / sm_count;
  return cost.fixed +
         static_cast<double>(waves) * (cost.per_k * static_cast<double>(k) + cost.per_tile);
}

struct GemmConfig {
  GemmTile tile = GemmTile::k128x128;
  /// Tile columns that are finished, all rows long, before the next ones begin.
  int panel = 0;
  bool operator==(const GemmConfig&) const = default;
};

/// Weights up to this size stay in L2 (50 to 60 MB) while the rows stream by, so that one panel
/// spans all columns: panels of 8 tiles lost up to a third there, reading the rows again. Larger
/// weights are cut into panels of 8 tiles, which gained a fifth with 128x128 and 128x96 at 8192^3
/// but lost 13 to 16 % with 128x192.
inline constexpr int64_t kPanelBytes = 32 << 20;

/// The tile of the lowest predicted time. A residual takes registers that 128x192 does not have.
/// The choice may depend on `rows`: every tile sums k in the same order, so bits do not change.
inline GemmConfig select_gemm(int64_t rows, int64_t n, int64_t k, bool has_residual, int sm_count) {
  GemmConfig config;
  double best = std::numeric_limits<double>::infinity();
  for (const GemmTileCost& cost : kGemmTiles) {
    if (has_residual && cost.tile == GemmTile::k128x192) continue;
    const double time = predict(cost, rows, n, k, sm_count);
    if (time < best) {
      best = time;
      config.tile = cost.tile;
    }
  }
  const bool cut = 2 * n * k > kPanelBytes && config.tile != GemmTile::k128x192;
  config.panel = cut ? 8 : std::numeric_limits<int>::max();
  return config;
}

/// The choice and every alternative with its predicted time, for logs and benchmarks.
inline std::string explain_gemm(int64_t rows, int64_t n, int64_t k, bool has_residual,
                                int sm_count) {
  const GemmConfig config = select_gemm(rows, n, k, has_residual, sm_count);
  std::string text = concat(rows, "x", n, "x", k, has_residual ? "+residual" : "", ":");
  for (const GemmTileCost& cost : kGemmTiles) {
    text += concat(cost.tile == config.tile ? " *" : " ", cost.m, "x", cost.n, "=",
                   predict(cost, rows, n, k, sm_count), "us");
  }
  return text;
}

/// Portable kernels. 64x64 as soon as 128x128 would leave SMs idle.
enum class GemmTileSm80 : uint8_t { k64x64, k128x128 };

inline GemmTileSm80 select_gemm_sm80(int64_t rows, int64_t n, int sm_count) {
  const int64_t large_tiles = ((rows + 127) / 128) * ((n + 127) / 128);
  return large_tiles < sm_count ? GemmTileSm80::k64x64 : GemmTileSm80::k128x128;
}

}  // namespace packhorse::cuda
