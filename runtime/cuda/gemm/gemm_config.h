// Chooses the GEMM kernel for a shape. These are pure host functions, so that they can be tested
// without a GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "core/format.h"
#include "core/math.h"

namespace packhorse::cuda {

/// The Hopper kernels, named by the rows x columns of the output tile. In a ping-pong kernel each
/// of two warpgroups has a tile of its own, and one multiplies while the other stores. In a
/// cooperative kernel (kHalves...) both work on one tile, each on half of its columns or rows.
enum class GemmTile : uint8_t {
  k64x16,
  k64x32,
  k64x64,
  kHalves64x128,
  kHalves128x128,
  k128x96,
  k128x128,
  k128x192
};

/// Cost of a tile, fitted to measurements on an H200 (benchmarks/gpu/gemm_sweep.py):
///
/// microseconds = fixed + waves * (per_k * k + per_tile), where waves = tiles / SMs, rounded up.
///
/// The part of an activation's time that cannot be hidden adds to per_tile; it was measured inside
/// an encoder. A product of few rows with a large weight takes at least the time of reading the
/// weight (kStreamedBytesPerUs, kStreamedBytesPerUsAndSm).
struct GemmTileCost {
  GemmTile tile;
  int m;
  int n;
  double fixed;       // us: the first loads, the last store, the handover between kernels
  double per_k;       // us per element of k
  double per_tile;    // us: the part of the epilogue that does not overlap with products
  double activation;  // us that an activation adds to per_tile
  const char* place;  // where this tile wins, and why others lose there
};

inline constexpr std::array<GemmTileCost, 8> kGemmTiles = {{
    {GemmTile::k64x16, 64, 16, 1.67, 0.00118, 0.13, 0,
     "k far larger than n and up to 128 rows: most SMs get a part of the weight to stream"},
    {GemmTile::k64x32, 64, 32, 1.52, 0.00137, 0.25, 0, "up to 300 rows of narrow outputs"},
    {GemmTile::k64x64, 64, 64, 1.05, 0.00203, 0.47, 0,
     "up to about 600 rows: larger tiles leave SMs without work, smaller ones load more. By "
     "halves (64x32 too) both warpgroups read all rows of the tile: 5 to 25 % slower"},
    {GemmTile::kHalves64x128, 64, 128, 0.46, 0.00310, 1.17, 0,
     "one wave where 64x64 needs two and 128x128 leaves a third of the SMs idle"},
    {GemmTile::kHalves128x128, 128, 128, 0.09, 0.00611, 1.81, 0,
     "one or two full waves: two warpgroups finish the last tile in half the time. 128x256 by "
     "halves loads three quarters of its bytes and won nowhere: its epilogue shows"},
    {GemmTile::k128x96, 128, 96, 1.17, 0.00470, 0.89, 0,
     "few waves, of which the last would be emptier with 128x128. per_k is by hand, 5 % above the "
     "fit, which is drawn down by small launches at higher clocks"},
    {GemmTile::k128x128, 128, 128, 1.13, 0.00612, 0.96, 0,
     "most large shapes: the epilogue hides under the other warpgroup's products. Shared memory "
     "takes a quarter longer than these"},
    {GemmTile::k128x192, 128, 192, 0.98, 0.00935, 1.24, 2.0,
     "wide outputs and many waves: a sixth fewer bytes loaded than with 128x128. An activation "
     "waits for stores there: the stages leave room for 64 columns of the tile"},
}};

/// Costs of the tiles that can form a sum over k in parts (gemm/split_k.h): the sums of earlier
/// parts take as many registers again as those of the current part. Their stages have one box of k
/// each, since a stage never holds elements of two parts, so per_k is higher.
inline constexpr std::array<GemmTileCost, 5> kGemmTilesInParts = {{
    {GemmTile::k64x16, 64, 16, 1.3, 0.0020, 0.2, 0, "narrow outputs"},
    {GemmTile::k64x32, 64, 32, 0.9, 0.0022, 0.3, 0, "up to 256 rows of narrow outputs"},
    {GemmTile::k64x64, 64, 64, 0.6, 0.0026, 0.7, 0, "up to about 500 rows"},
    {GemmTile::kHalves64x128, 64, 128, 0.3, 0.0046, 1.0, 0, "one wave where 64x64 needs two"},
    {GemmTile::kHalves128x128, 128, 128, 0.1, 0.0060, 1.5, 0, "all else"},
}};

/// Tiles for e4m3 operands and their costs. The main loop takes half the time that it takes with 16
/// bits, so the epilogue weighs more and one tile wins nearly everywhere: with 128x192, and with
/// 128x256 by halves, accumulators leave the epilogue too few registers.
inline constexpr std::array<GemmTileCost, 4> kGemmTilesFloat8 = {{
    {GemmTile::k64x16, 64, 16, 1.9, 0.0006, 0.11, 0, "few rows and a narrow 16-bit result"},
    {GemmTile::k64x32, 64, 32, 1.8, 0.0008, 0.2, 0, "up to 300 rows of narrow outputs"},
    {GemmTile::k64x64, 64, 64, 1.7, 0.00115, 0.4, 0, "up to about 600 rows"},
    {GemmTile::k128x128, 128, 128, 1.0, 0.0034, 0.6, 0.9, "all else"},
}};

inline const GemmTileCost& cost_of(GemmTile tile) { return kGemmTiles[static_cast<size_t>(tile)]; }

/// Inputs of the choice between tiles, beside the number of SMs.
struct GemmShape {
  int64_t rows;
  int64_t n;
  int64_t k;
  bool counted = false;    // `rows` is the largest count of a captured graph
  bool activated = false;  // the layer has an activation
  int least_columns = 0;   // narrower tiles have no kernel for this layer
  bool in_parts = false;   // the sum over k is formed in parts
  bool float8 = false;     // operands are e4m3, not 16 bits
};

/// Returns the tiles that have a kernel for a layer.
inline std::span<const GemmTileCost> tiles_for(const GemmShape& shape) {
  if (shape.float8) return kGemmTilesFloat8;
  if (shape.in_parts) return kGemmTilesInParts;
  return kGemmTiles;
}

/// Bytes of weights that memory delivers per microsecond, in total and to one SM, and bytes of
/// operands that the L2 cache delivers.
inline constexpr double kStreamedBytesPerUs = 4.1e6;
inline constexpr double kStreamedBytesPerUsAndSm = 35e3;
inline constexpr double kLoadedBytesPerUs = 10.5e6;

/// Weights up to this size stay in the L2 cache (50 to 60 MB) while the rows stream by, so one
/// panel spans all columns. Larger weights are cut into panels of 8 tile columns, and of 32 where
/// blocks are paired. That gained 12 % with tiles of 128x128 at 8192^3, and 9 to 14 % with pairs of
/// 128x192 at 2048 -> 16384; 128x192 without pairs lost 9 % at 8192^3 and is never cut.
inline constexpr int64_t kResidentWeightBytes = 32 << 20;
inline bool is_cut(GemmTile tile, int64_t n, int64_t k, bool paired) {
  return 2 * n * k > kResidentWeightBytes && (paired || tile != GemmTile::k128x192);
}
inline int panel_of(GemmTile tile, int64_t n, int64_t k, bool paired = false) {
  return is_cut(tile, n, k, paired) ? (paired ? 32 : 8) : std::numeric_limits<int>::max();
}

/// Pairs read less of a weight through the L2 cache, at the price of a cluster barrier at each end
/// of a launch. With weights of 8 MiB or more they gained 2 to 10 % on an H100 (14 shapes of 512 to
/// 10,308 rows); with 4.5 MiB they lost up to 4 %. A pair's panels are wider, since it passes over
/// the rows in half as many steps.
inline constexpr int64_t kPairedWeightBytes = 8 << 20;
inline constexpr int64_t kPairedRows = 512;
inline bool is_paired(const GemmTileCost& cost, const GemmShape& shape, int sm_count) {
  if (cost.m < 128 || shape.rows < kPairedRows || 2 * shape.n * shape.k < kPairedWeightBytes ||
      shape.float8) {
    return false;
  }
  // An odd number of tiles below each other leaves the last pair half empty.
  const int64_t below = ceil_div<int64_t>(shape.rows, cost.m);
  const int64_t beside = ceil_div<int64_t>(shape.n, cost.n);
  return ceil_div<int64_t>(round_up(below, int64_t{2}) * beside, sm_count) ==
         ceil_div<int64_t>(below * beside, sm_count);
}

/// Returns the share of the predicted time that a launch takes whose pairs of blocks go over panels
/// of a large weight; 1 for all others.
inline double paired_share(const GemmTileCost& cost, const GemmShape& shape, int sm_count) {
  if (shape.in_parts || !is_paired(cost, shape, sm_count) ||
      !is_cut(cost.tile, shape.n, shape.k, true)) {
    return 1;
  }
  return cost.tile == GemmTile::k128x192 ? 0.90 : 0.93;
}

/// Returns the predicted microseconds for exactly `shape.rows` rows. Of tiles that wait for memory
/// all the same, the one that computes less is taken for the faster by a hundredth of that.
inline double predict(const GemmTileCost& cost, const GemmShape& shape, int sm_count) {
  const int64_t below = ceil_div<int64_t>(shape.rows, cost.m);
  const int64_t tiles = below * ceil_div<int64_t>(shape.n, cost.n);
  const int64_t waves = ceil_div<int64_t>(tiles, sm_count);
  const double per_tile = cost.per_tile + (shape.activated ? cost.activation : 0);
  const double computing = cost.fixed + static_cast<double>(waves) *
                                            (cost.per_k * static_cast<double>(shape.k) + per_tile);
  // Tiles that lie one below the other share what is read from memory.
  const double to_one = static_cast<double>(waves * cost.n) / static_cast<double>(below);
  const double row_bytes = static_cast<double>(shape.k) * (shape.float8 ? 1 : 2);
  const double streaming = row_bytes * std::max(static_cast<double>(shape.n) / kStreamedBytesPerUs,
                                                to_one / kStreamedBytesPerUsAndSm);
  const int64_t loaded = std::min<int64_t>(shape.rows, cost.m) + cost.n;  // rows of k, by a tile
  const double loading = row_bytes * static_cast<double>(tiles * loaded) / kLoadedBytesPerUs;
  return std::max({computing, streaming, loading}) * paired_share(cost, shape, sm_count) +
         computing / 100;
}

struct GemmConfig {
  GemmTile tile = GemmTile::k128x128;
  /// True: two blocks form a cluster; their tiles lie one below the other, and each loads half of
  /// their weight for both. The bits are the same.
  bool paired = false;
  /// The number of tile columns that are finished, over all rows, before the next ones begin.
  int panel = 0;
  bool operator==(const GemmConfig&) const = default;
};

/// Returns the predicted microseconds of a launch that serves all row counts of a captured graph,
/// from about eight ninths of the largest on: the mean over these counts. The largest alone would
/// be a poor guide, since one wave more or less decides between tiles.
inline double predict_counted(const GemmTileCost& cost, GemmShape shape, int sm_count) {
  constexpr int kCounts = 8;
  const int64_t most = shape.rows;
  double sum = 0;
  for (int i = 1; i <= kCounts; ++i) {
    shape.rows = std::max<int64_t>(1, most * (8 * kCounts + i) / (9 * kCounts));
    sum += predict(cost, shape, sm_count);
  }
  return sum / kCounts;
}

/// Returns the tile with the lowest predicted time. The choice may depend on the number of rows:
/// every tile sums over k in the same order, and in the same parts, so the bits are the same.
inline GemmConfig select_gemm(const GemmShape& shape, int sm_count) {
  GemmConfig config;
  double best = std::numeric_limits<double>::infinity();
  for (const GemmTileCost& cost : tiles_for(shape)) {
    if (cost.n < shape.least_columns) continue;
    const double time =
        shape.counted ? predict_counted(cost, shape, sm_count) : predict(cost, shape, sm_count);
    if (time < best) {
      best = time;
      config.tile = cost.tile;
      config.paired = is_paired(cost, shape, sm_count);
    }
  }
  config.panel = panel_of(config.tile, shape.n, shape.k, config.paired);
  return config;
}

/// Returns the predicted microseconds of a choice for exactly `shape.rows` rows.
inline double predict(const GemmConfig& config, const GemmShape& shape, int sm_count) {
  const auto tiles = tiles_for(shape);
  return predict(*std::ranges::find(tiles, config.tile, &GemmTileCost::tile), shape, sm_count);
}

/// Returns the tile with the lowest predicted time for e4m3 operands. With `float8_out` the result
/// is e4m3, too.
inline GemmConfig select_gemm_float8(GemmShape shape, bool float8_out, int sm_count) {
  shape.float8 = true;
  // A row of a stored box has at least 32 bytes.
  if (float8_out) shape.least_columns = std::max(shape.least_columns, 32);
  GemmConfig config = select_gemm(shape, sm_count);
  config.panel = panel_of(config.tile, shape.n, shape.k / 2);
  return config;
}

/// Describes the choice and every alternative with its predicted time, for logs and benchmarks.
inline std::string explain_gemm(const GemmShape& shape, int sm_count) {
  const GemmConfig config = select_gemm(shape, sm_count);
  std::string text = concat(shape.rows, "x", shape.n, "x", shape.k, ":");
  for (const GemmTileCost& cost : tiles_for(shape)) {
    text += concat(cost.tile == config.tile ? " *" : " ", cost.m, "x", cost.n, "=",
                   predict(cost, shape, sm_count), "us");
  }
  return text;
}

/// The portable kernels: 64x64 where 128x128 would leave SMs idle.
enum class GemmTileSm80 : uint8_t { k64x64, k128x128 };

inline GemmTileSm80 select_gemm_sm80(int64_t rows, int64_t n, int sm_count) {
  const int64_t large_tiles = ceil_div(rows, 128) * ceil_div(n, 128);
  return large_tiles < sm_count ? GemmTileSm80::k64x64 : GemmTileSm80::k128x128;
}

}  // namespace packhorse::cuda
