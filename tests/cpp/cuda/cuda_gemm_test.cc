// Tests the parts of the CUDA GEMM that need no GPU: tile choice and activation arithmetic.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/math.h"
#include "cuda/common/activations.cuh"
#include "cuda/gemm/gemm_config.h"
#include "cuda/gemm/skinny/tile.h"
#include "cuda/gemm/split_k.h"
#include "cuda/gemm/splitk/tile.h"
#include "test.h"

namespace packhorse::cuda {
namespace {

constexpr int kSms = 132;

TEST(gemm_tile_never_predicted_slower_than_another) {
  for (int64_t rows : {1, 16, 63, 64, 65, 581, 4096, 65536}) {
    for (int64_t n : {8, 384, 768, 3072, 12288}) {
      for (int64_t k : {8, 768, 12288}) {
        for (bool activated : {false, true}) {
          const GemmShape one = {rows, n, k, false, activated},
                          many = {rows, n, k, true, activated};
          const GemmTileCost& exact = cost_of(select_gemm(one, kSms).tile);
          const GemmTileCost& counted = cost_of(select_gemm(many, kSms).tile);
          for (const GemmTileCost& cost : kGemmTiles) {
            CHECK(predict(exact, one, kSms) <= predict(cost, one, kSms));
            CHECK(predict_counted(counted, many, kSms) <= predict_counted(cost, many, kSms));
          }
        }
      }
    }
  }
}

TEST(gemm_tiles_of_known_shapes) {
  // The fastest tiles as measured on an H200.
  const auto tile = [](int64_t rows, int64_t n, int64_t k, bool activated = false) {
    return select_gemm({rows, n, k, false, activated}, kSms).tile;
  };
  CHECK(tile(21769, 2304, 768) == GemmTile::k128x192);
  CHECK(tile(10191, 1536, 384, true) != GemmTile::k128x192);
  CHECK(tile(10308, 1024, 4096) == GemmTile::k128x128);
  CHECK(tile(5283, 3072, 768) == GemmTile::k128x128);
  CHECK(tile(1151, 768, 768) == GemmTile::kHalves64x128);
  CHECK(tile(1151, 768, 3072) == GemmTile::kHalves64x128);
  CHECK(tile(581, 768, 3072) == GemmTile::k64x64);
  CHECK(tile(128, 768, 3072) == GemmTile::k64x16);
  CHECK(tile(2048, 16384, 2048) == GemmTile::k128x128);
  CHECK(tile(8192, 16384, 2048) == GemmTile::k128x192);
  CHECK(tile(16, 12288, 12288) == GemmTile::k64x32);  // takes as long as reading its weights
}

TEST(gemm_of_counted_rows_is_judged_by_the_counts_it_will_see) {
  // Up to 22 of the 22 to 24 tiles of rows fit into one wave.
  const GemmTileCost& cost = cost_of(GemmTile::kHalves64x128);
  const double worst = predict(cost, {1536, 768, 768}, kSms);
  CHECK(predict_counted(cost, {1536, 768, 768}, kSms) < worst);
  const double one_wave = predict(cost, {64, 768, 768}, kSms);
  CHECK(std::abs(predict_counted(cost, {64, 768, 768}, kSms) - one_wave) < 1e-9);
}

TEST(gemm_parts_are_of_equal_length) {
  CHECK(split_k(768, 3072, kSms) == 4 && split_k(1600, 6400, kSms) == 4);
  CHECK(split_k(1600, 1600, kSms) == 5 && split_k(4800, 1600, kSms) == 1);
  CHECK(split_k(6144, 4096, kSms) == 2 && split_k(128256, 2048, kSms) == 1);
  for (int64_t k : {8, 64, 128, 136, 576, 768, 1088, 1600, 6400, 8192}) {
    for (int64_t n : {8, 768, 4224, 4232, 8448, 8456, 128256}) {
      const int32_t parts = split_k(n, k, kSms);
      CHECK(parts == 1 || k % (kSumUnit * parts) == 0);
      CHECK(parts == 1 || n <= int64_t{kSms} * 16 * (8 / parts));
    }
  }
}

TEST(gemm_skinny_tiles_have_room_for_their_parts) {
  for (int64_t rows : {1, 8, 9, 16}) {
    for (int64_t n : {8, 96, 768, 2304, 4096, 4800, 8448, 128256}) {
      for (int64_t k : {8, 136, 768, 1600, 12288}) {
        for (bool gated : {false, true}) {
          if (gated && n % (2 * kGateBlock) != 0) continue;
          const int32_t parts = split_k(n, k, kSms);
          const GemmSkinnyTile tile = skinny_tile(rows, n, k, parts, gated, kSms);
          CHECK(tile.shared_bytes <= kSkinnySharedBytes + (16 << 10));
          CHECK(tile.warps() * parts <= 10);  // as the bounds of a launch say
          CHECK(parts == 1 || tile.blocks * int64_t{tile.features} >= n);  // a tile for each block
          CHECK(int64_t{tile.steps} * tile.boxes * 64 * parts >= k);
        }
      }
    }
  }
}

/// Checks that a tile is as the kernels of clusters need it.
void check_cluster_tile(const GemmSplitkClusterTile& tile, int64_t n, int64_t k) {
  const int parts = tile.parts;
  const int tile_rows = 64 * tile.groups;
  CHECK(tile.features % 8 == 0 && tile.features <= tile.columns);
  CHECK(tile.clusters / tile.row_blocks * int64_t{tile.features} >= n);
  CHECK(int64_t{tile.steps} * tile.boxes * kSumUnit * parts >= k);
  CHECK(int64_t{tile.steps - 1} * tile.boxes * kSumUnit * parts < k);  // none is empty
  CHECK(tile.stage_bytes() % 1024 == 0);  // as the swizzle of boxes needs it
  // Behind the stages lies what wgmma reads past a box.
  const int64_t behind = tile.shared_bytes - int64_t{tile.stages} * tile.stage_bytes();
  CHECK(behind >= int64_t{128} * (tile.columns - tile.features));
  CHECK(behind >= int64_t{128} * (tile_rows - tile.row_box));
  // Sums of all terms lie there too, or where the stages were.
  const int64_t room = tile.shared_bytes - tile.sums_at;
  CHECK(room >= int64_t{512} * tile.row_box / 16 * tile.slots * tile.terms());
  CHECK(tile.sums_in_stages || tile.sums_at == int64_t{tile.stages} * tile.stage_bytes());
  CHECK(tile.slots <= ceil_div(tile.columns / 8, 2));  // those that a kernel has
}

TEST(gemm_splitk_cluster_tiles_fit_and_run_at_once) {
  for (int64_t rows : {17, 32, 33, 64}) {
    for (int64_t n : {8, 96, 768, 1600, 2304, 4096, 4224, 5120, 8448}) {
      for (int64_t k : {192, 576, 768, 1600, 12288}) {
        const int32_t parts = split_k(n, k, kSms);
        if (parts == 1) continue;
        // As on an H200 with four parts: a group of multiprocessors that is short of one cluster.
        const ClustersAtOnce at_once{kSms / parts - 2, 2 * (kSms / parts - 2)};
        const GemmSplitkClusterTile tile = few_rows_tile(rows, n, k, parts, at_once);
        const bool alone = tile.clusters <= at_once.alone;
        CHECK(tile.shared_bytes <= (alone ? kClusterSharedBytes : kPairedSharedBytes));
        CHECK(tile.clusters <= at_once.paired);
        CHECK(tile.groups == 1 && tile.row_blocks == 1 && tile.terms() == parts);
        check_cluster_tile(tile, n, k);
      }
    }
  }
}

TEST(gemm_splitk_cluster_tiles_of_many_rows_fit_and_run_at_once) {
  int found = 0;
  for (int64_t rows : {65, 100, 128, 129, 300, 512, 2048}) {
    for (int64_t n : {8, 96, 512, 1608, 2048, 4096, 5128, 8448}) {
      for (int64_t k : {192, 576, 1600, 8192, 12288}) {
        const int32_t parts = split_k(n, k, kSms);
        for (const int blocks : {parts, parts / 2}) {
          if (blocks < 2 || parts % blocks != 0) continue;
          const int alone = kSms / blocks - (blocks > 2 ? 2 : 0);
          double time = 1e9;
          const auto tile = tall_tile(rows, n, k, parts, blocks, alone, time);
          if (!tile) continue;
          ++found;
          CHECK(time == predict_tall(*tile, k));
          CHECK(!tall_tile(rows, n, k, parts, blocks, alone, time));  // none is faster
          CHECK(tile->shared_bytes <= kClusterSharedBytes);
          CHECK(tile->clusters <= alone);
          CHECK(tile->groups == 2 && int64_t{tile->row_blocks} * kTallRows >= rows);
          CHECK(tile->terms() == (blocks == parts ? parts : 1 + 2 * (blocks - 1)));
          check_cluster_tile(*tile, n, k);
        }
      }
    }
  }
  CHECK(found > 50);
}

TEST(gemm_table_is_in_the_order_of_its_tiles) {
  for (size_t i = 0; i < kGemmTiles.size(); ++i) {
    CHECK(static_cast<size_t>(kGemmTiles[i].tile) == i);
  }
}

TEST(gemm_tiles_that_wait_for_memory_compute_little) {
  // Two rows of tiles of 64 rows would read each part of the weight twice.
  const GemmConfig config = select_gemm({128, 16384, 2048, false, false, 32}, kSms);
  CHECK(cost_of(config.tile).m == 128);
}

TEST(gemm_panels_cut_large_weights_only) {
  CHECK(select_gemm({4096, 3072, 768}, kSms).panel > 3072);
  for (int64_t rows : {256, 1024, 8192}) {
    const GemmConfig config = select_gemm({rows, 8192, 8192}, kSms);
    const int panel = config.paired ? 32 : 8;
    const bool cut = config.paired || config.tile != GemmTile::k128x192;
    CHECK(cut ? config.panel == panel : config.panel > 8192);
  }
}

TEST(gemm_blocks_share_large_weights_where_there_are_rows_for_two) {
  CHECK(select_gemm({2048, 2048, 8192}, kSms).paired);
  CHECK(select_gemm({2048, 2048, 8192, false, false, 0, true}, kSms).paired);
  CHECK(!select_gemm({5283, 768, 3072}, kSms).paired);
  CHECK(!select_gemm({128, 2048, 8192}, kSms).paired);
  // Five tiles below each other: pairs would need a second wave.
  CHECK(!select_gemm({640, 3072, 2048, false, false, 0, true}, kSms).paired);
}

TEST(gemm_choice_is_printable) {
  const std::string text = explain_gemm({4096, 768, 768}, kSms);
  CHECK(text.find("4096x768x768:") == 0);
  CHECK(text.find(" *") != text.npos);
  CHECK(text.find("128x192=") != text.npos);
}

TEST(gemm_sm80_small_tiles_where_large_ones_leave_multiprocessors_idle) {
  CHECK(select_gemm_sm80(128, 768, 108) == GemmTileSm80::k64x64);
  CHECK(select_gemm_sm80(16384, 768, 108) == GemmTileSm80::k128x128);
}

TEST(gelu_errs_by_less_than_3e5th_everywhere) {
  double erf_error = 0, tanh_error = 0;
  for (int i = -1000000; i <= 1000000; ++i) {
    const float x = static_cast<float>(i) * 1e-5f;
    const double d = x;
    const double u = std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
    erf_error = std::fmax(erf_error, std::fabs(gelu_erf()(x) - 0.5 * d * std::erfc(-d / M_SQRT2)));
    tanh_error = std::fmax(tanh_error, std::fabs(gelu_tanh()(x) - 0.5 * d * (1 + std::tanh(u))));
  }
  CHECK(erf_error < 2.2e-5);
  CHECK(tanh_error < 2.6e-5);
}

TEST(gelu_saturates) {
  for (float x : {6.0f, 100.0f, 3e38f, std::numeric_limits<float>::infinity()}) {
    CHECK(gelu_erf()(x) == x && gelu_tanh()(x) == x);
  }
  for (float x : {-16.0f, -100.0f, -3e38f, -std::numeric_limits<float>::infinity()}) {
    CHECK(gelu_erf()(x) == 0.0f && gelu_tanh()(x) == 0.0f);
  }
  for (float x = -16.0f; x < 0.0f;
       x += 1e-4f) {  // never above zero, and closer to it with falling x
    CHECK(gelu_erf()(x) <= 0.0f && gelu_tanh()(x) <= 0.0f);
    if (x < -1.0f) CHECK(gelu_erf()(x) >= gelu_erf()(x + 1e-3f));
  }
  CHECK(gelu_erf()(0.0f) == 0.0f && gelu_tanh()(0.0f) == 0.0f);
}

TEST(activations_keep_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Activation activation :
       {Activation::kNone, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,
        Activation::kSilu, Activation::kTanh, Activation::kSigmoid}) {
    float values[2] = {nan, 0.5f};
    activate<2>(values, activation);
    CHECK(std::isnan(values[0]) && !std::isnan(values[1]));
  }
}

TEST(activations_match_float64) {
  for (double d = -20; d <= 20; d += 0.01) {
    const float x = static_cast<float>(d);
    float values[1];
    auto apply = [&](Activation activation) {
      values[0] = x;
      activate<1>(values, activation);
      return static_cast<double>(values[0]);
    };
    CHECK(apply(Activation::kNone) == x);
    CHECK(apply(Activation::kRelu) == (x > 0 ? x : 0));
    CHECK(std::fabs(apply(Activation::kSilu) - x / (1 + std::exp(-double{x}))) < 3e-6);
    CHECK(std::fabs(apply(Activation::kTanh) - std::tanh(double{x})) < 1e-6);
    CHECK(std::fabs(apply(Activation::kSigmoid) - 1 / (1 + std::exp(-double{x}))) < 1e-6);
  }
}

TEST(tanh_keeps_its_digits_near_zero) {
  for (double d = 1e-30; d < 20; d *= 1.01) {
    for (const float x : {static_cast<float>(d), static_cast<float>(-d)}) {
      const double exact = std::tanh(double{x});
      CHECK(std::fabs(Tanh{}(x)-exact) < 3e-6 * std::fabs(exact));
    }
  }
}

}  // namespace
}  // namespace packhorse::cuda
