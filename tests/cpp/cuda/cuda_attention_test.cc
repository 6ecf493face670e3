// Tests the part of Hopper attention that needs no GPU: which kernel runs a batch.
#include "cuda/attention/choice.h"
#include "cuda/attention/config.h"
#include "test.h"

namespace packhorse::cuda {
namespace {

constexpr int kSms = 132;

TEST(attention_head_tile_is_the_smallest_that_holds_the_head) {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const int tile = attention_head_tile(head_dim);
    CHECK(tile >= head_dim);
    for (const int other : kAttentionHeadTiles) CHECK(other < head_dim || other >= tile);
  }
  CHECK(attention_head_tile(264) == 0);
}

TEST(attention_key_tile_depends_on_the_layer_alone) {
  // The tile orders the sums of a row, so the batch must never choose it. Its type allows one
  // number for each head tile and kind of window.
  CHECK(attention_kv_tile(64) == 128);
  CHECK(attention_kv_tile(64, true) == 64);
  CHECK(attention_kv_tile(256) == 64);
}

TEST(attention_narrow_windows_have_a_plan_of_their_own) {
  CHECK(is_narrow_window(64, 64, 64) && is_narrow_window(32, 256, 0));
  CHECK(!is_narrow_window(64, -1, 64) && !is_narrow_window(64, 64, -1));
  CHECK(!is_narrow_window(64, 4095, 0) && !is_narrow_window(128, 64, 64));
  for (const int longest : {1, 100, 8192}) {
    const auto plan = [&](bool term) {
      return select_attention(64, 12, longest, longest, term, kSms, true).plan;
    };
    CHECK(plan(false) == AttentionPlan::kWindow && plan(true) == AttentionPlan::kTerm);
  }
}

TEST(attention_plans_of_known_shapes) {
  // The fastest plans as measured on an H200, by heads, tokens and longest sequence.
  const auto plan = [](int head_dim, int heads, int64_t tokens, int longest) {
    return select_attention(head_dim, heads, tokens, longest, false, kSms).plan;
  };
  CHECK(plan(64, 12, 4821, 128) == AttentionPlan::kSingleTile);
  CHECK(plan(64, 12, 10191, 256) == AttentionPlan::kPingPong);
  CHECK(plan(64, 12, 512, 512) == AttentionPlan::kManyBlocks);
  CHECK(plan(64, 12, 28175, 16384) == AttentionPlan::kPingPong);
  CHECK(plan(32, 12, 10191, 256) == AttentionPlan::kManyBlocks);
  CHECK(plan(32, 12, 27103, 4096) == AttentionPlan::kPingPong);
  CHECK(plan(128, 16, 100, 100) == AttentionPlan::kPingPong);
}

TEST(attention_single_tile_plan_only_where_every_sequence_fits_one) {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (const int longest : {1, 64, 65, 128, 129, 131072}) {
      for (const bool term : {false, true}) {
        const AttentionConfig config = select_attention(head_dim, 12, longest, longest, term, kSms);
        CHECK((config.plan == AttentionPlan::kTerm) == term);
        if (config.plan == AttentionPlan::kSingleTile) {
          CHECK(longest <= attention_kv_tile(config.head_tile));
        }
        // Only kernels that exist (attention/sm90/dispatch.h) may be chosen.
        CHECK(config.head_tile <= 64 || config.plan == AttentionPlan::kPingPong || term);
      }
    }
  }
}

using Algorithm = AttentionAlgorithm;

Algorithm choose(Algorithm asked, bool has_hopper, ScoreTermKind kind = ScoreTermKind::kNone,
                 int head_dim = 64, bool fits_hopper = true) {
  ScoreTerm term;
  term.kind = kind;
  return choose_algorithm(asked, has_hopper, fits_hopper, term, head_dim);
}

TEST(attention_auto_is_hopper_where_it_can_be) {
  CHECK(choose(Algorithm::kAuto, true) == Algorithm::kHopper);
  CHECK(choose(Algorithm::kAuto, false) == Algorithm::kOnline);
  CHECK(choose(Algorithm::kAuto, true, ScoreTermKind::kBucketed, 64, false) == Algorithm::kOnline);
  CHECK(choose(Algorithm::kAuto, true, ScoreTermKind::kDisentangled, 64) == Algorithm::kHopper);
  CHECK(choose(Algorithm::kAuto, true, ScoreTermKind::kDisentangled, 72) == Algorithm::kOnline);
}

TEST(attention_algorithms_are_taken_or_refused) {
  for (const auto asked :
       {Algorithm::kOnline, Algorithm::kShort, Algorithm::kGrouped, Algorithm::kByteTransformer}) {
    CHECK(choose(asked, true) == asked &&
          choose(asked, false, ScoreTermKind::kAlibi, 128) == asked);
    const bool general = asked == Algorithm::kOnline;
    if (general) {
      CHECK(choose(asked, true, ScoreTermKind::kDisentangled, 128) == asked);
      CHECK(choose(asked, true, ScoreTermKind::kNone, 256) == asked);
      continue;
    }
    CHECK_THROWS_WITH(choose(asked, true, ScoreTermKind::kNone, 136),
                      "heads of at most 128 columns, found 136");
    CHECK_THROWS_WITH(choose(asked, true, ScoreTermKind::kDisentangled),
                      "no disentangled term; expected 'auto', 'hopper' or 'online'");
  }
  CHECK_THROWS_WITH(choose(Algorithm::kHopper, false), "compute capability 9.0");
  CHECK_THROWS_WITH(choose(Algorithm::kHopper, true, ScoreTermKind::kDisentangled, 72),
                    "at most 64 columns with a disentangled term, found 72");
  CHECK_THROWS_WITH(choose(Algorithm::kHopper, true, ScoreTermKind::kBucketed, 64, false),
                    "does not take this term");
  CHECK_THROWS_WITH(choose(Algorithm::kHopper, true, ScoreTermKind::kGrid, 64, false),
                    "computes no term of grids; expected 'auto' or 'online'");
  CHECK(choose(Algorithm::kAuto, true, ScoreTermKind::kGrid, 64, false) == Algorithm::kOnline);
}

TEST(attention_is_explained_by_what_runs) {
  const auto text = [](Algorithm algorithm, int64_t longest) {
    return explain_algorithm(algorithm, false, select_attention(64, 12, 512, 512, false, kSms),
                             longest);
  };
  CHECK(text(Algorithm::kHopper, 512) == "hopper (head tile 64, many-blocks)");
  CHECK(text(Algorithm::kOnline, 512) == "online (online softmax)");
  CHECK(text(Algorithm::kShort, 384) == "short (whole score rows on chip up to 384 keys)");
  CHECK(text(Algorithm::kShort, 385) ==
        "short (whole score rows on chip up to 384 keys, online softmax)");
  CHECK(text(Algorithm::kByteTransformer, 2000) ==
        "bytetransformer (whole score rows on chip up to 384 keys, grouped GEMMs up to 1024 keys, "
        "online softmax)");
}

TEST(warps_and_tiles_share_a_batch_by_length) {
  const auto same = [](const HopperKernels& found, bool tiles, bool warps) {
    return found.tiles == tiles && found.warps == warps;
  };
  // {shortest, longest of queries, longest of keys}
  CHECK(same(hopper_kernels(false, 1, 5, 5), true, false));
  CHECK(same(hopper_kernels(true, 1, 32, 32), false, true));
  CHECK(same(hopper_kernels(true, 0, 32, 32), false, true));
  CHECK(same(hopper_kernels(true, 1, 33, 33), true, true));
  CHECK(same(hopper_kernels(true, 32, 512, 512), true, true));
  CHECK(same(hopper_kernels(true, 33, 512, 512), true, false));
  CHECK(same(hopper_kernels(true, 0, 512, 512), true, true));
  CHECK(same(hopper_kernels(true, 1, 5, 40), true, true));
  CHECK(computed_by_warps(0, 0) && computed_by_warps(32, 32));
  CHECK(!computed_by_warps(33, 1) && !computed_by_warps(1, 33));
  const AttentionConfig config = select_attention(64, 12, 512, 100, false, kSms);
  const auto text = [&](const HopperKernels& kernels) {
    return explain_algorithm(Algorithm::kHopper, false, config, 100, kernels);
  };
  CHECK(text({true, false}) == "hopper (head tile 64, single-tile)");
  CHECK(text({true, true}) == "hopper (head tile 64, single-tile, warps up to 32 tokens)");
  CHECK(text({false, true}) == "hopper (warps up to 32 tokens)");
}

TEST(attention_algorithms_have_names) {
  for (const char* name : {"auto", "hopper", "online", "short", "grouped", "bytetransformer"}) {
    CHECK(name_of(parse_attention_algorithm(name, "x")) == std::string(name));
  }
  CHECK_THROWS_WITH(parse_attention_algorithm("flash", "algorithm"),
                    "algorithm is 'flash', expected one of 'auto', 'hopper'");
}

}  // namespace
}  // namespace packhorse::cuda
