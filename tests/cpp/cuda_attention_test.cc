// The part of Hopper attention that needs no GPU: which kernel runs a batch.
#include "cuda/attention/attention_config.h"
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
  // The batch must never choose it: it orders a row's sums. One number per head tile and kind of
  // window, by type.
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
  // Measured winners, H200: heads, tokens, longest.
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
        // Kernels that exist (attention_sm90_dispatch.h).
        CHECK(config.head_tile <= 64 || config.plan == AttentionPlan::kPingPong || term);
      }
    }
  }
}

}  // namespace
}  // namespace packhorse::cuda
