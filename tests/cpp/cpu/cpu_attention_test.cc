// Tests attention of the CPU backend.
#include "cpu_test.h"

namespace packhorse::cpu_test {
namespace {

// Runs `op` over a batch of sequences of different lengths and compares each with the reference.
bool attention_agrees(AttentionOp& op, DType dtype, const std::vector<int32_t>& lengths) {
  const std::vector<int32_t> cu_seqlens = prefix_sums(lengths);
  const int64_t q = int64_t{op.heads} * op.head_dim, kv = int64_t{op.kv_heads} * op.head_dim;
  const Matrix qkv = Matrix::random(cu_seqlens.back(), q + 2 * kv, dtype, 17);
  const Matrix found = op.run(qkv, cu_seqlens);
  bool agrees = true;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t row = cu_seqlens[s], n = lengths[s];
    Matrix part(n, q, dtype);
    part.set(columns_of(found, row, n, 0, q));
    agrees &= close(part, op.expect(columns_of(qkv, row, n, 0, q), columns_of(qkv, row, n, q, kv),
                                    columns_of(qkv, row, n, q + kv, kv), n, n));
  }
  return agrees;
}

TEST(cpu_attention_matches_float64) {
  struct Shape {
    int heads, kv_heads, head_dim;
  };
  const Shape shapes[] = {{4, 4, 32}, {4, 2, 16},  {6, 1, 48}, {2, 2, 64},
                          {1, 1, 96}, {1, 1, 128}, {1, 1, 256}};
  const AttentionMask masks[] = {
      {}, {true, -1, -1}, {false, 10, 3}, {true, 150, -1}, {false, -1, 0}, {false, 0, 0}};
  for (DType dtype : dtypes()) {
    for (size_t shape = 0; shape < std::size(shapes); ++shape) {
      for (size_t mask = 0; mask < std::size(masks); ++mask) {
        // The first shape meets every mask; the others meet none and one of them, in turn.
        if (shape > 0 && mask > 0 && mask != 1 + shape % 5) continue;
        AttentionOp op;
        op.ops = make(3);
        op.heads = shapes[shape].heads;
        op.kv_heads = shapes[shape].kv_heads;
        op.head_dim = shapes[shape].head_dim;
        op.mask = masks[mask];
        CHECK(attention_agrees(op, dtype, {1, 0, 5, 64, 17, 130, 1, 65, 300, 2, 15, 33, 257}));
      }
    }
  }
}

TEST(cpu_attention_adds_score_terms) {
  const float slopes[] = {0.5f, 0.25f, 0.125f, 0.01f};
  const std::vector<float> table = Matrix::random(32, 4, DType::kFloat32, 41).values();
  for (DType dtype : dtypes()) {
    AttentionOp op;
    op.ops = make(2);
    op.term.kind = ScoreTermKind::kAlibi;
    op.term.slopes = slopes;
    CHECK(attention_agrees(op, dtype, {3, 70, 200}));
    op.mask.causal = true;
    CHECK(attention_agrees(op, dtype, {3, 70, 200}));
    op.mask = {};
    op.term.kind = ScoreTermKind::kBucketed;
    op.term.table = table.data();
    for (auto [buckets, distance] : {std::pair{32, 128}, {32, 20}, {8, 1000}, {4, 2}}) {
      op.term.num_buckets = buckets;
      op.term.max_distance = distance;
      CHECK(attention_agrees(op, dtype, {3, 70, 400}));
    }
  }
}

TEST(cpu_attention_takes_queries_after_cached_keys) {
  for (DType dtype : dtypes()) {
    AttentionOp op;
    op.ops = make(2);
    op.mask.causal = true;
    const std::vector<int32_t> queries = prefix_sums({1, 7, 0, 70, 3});
    const std::vector<int32_t> keys = prefix_sums({300, 7, 12, 200, 0});
    Matrix q = Matrix::random(queries.back(), 128, dtype, 51);
    Matrix k = Matrix::random(keys.back(), 128, dtype, 52);
    Matrix v = Matrix::random(keys.back(), 128, dtype, 53);
    Matrix out(queries.back(), 128, dtype);
    AttentionArgs args;
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.out = out.view();
    args.queries = batch_of(queries);
    args.keys = batch_of(keys);
    const Matrix found = op.finish(args, out);
    for (size_t s = 0; s + 1 < queries.size(); ++s) {
      const int64_t nq = queries[s + 1] - queries[s], nk = keys[s + 1] - keys[s];
      Matrix part(nq, 128, dtype);
      part.set(columns_of(found, queries[s], nq, 0, 128));
      // The last sequence has queries but no keys, so it gives zeros.
      CHECK(close(
          part, op.expect(columns_of(q, queries[s], nq, 0, 128), columns_of(k, keys[s], nk, 0, 128),
                          columns_of(v, keys[s], nk, 0, 128), nq, nk)));
    }
  }
}

TEST(cpu_attention_gives_no_weight_to_scores_of_minus_infinity) {
  for (DType dtype : dtypes()) {
    AttentionOp op;
    op.ops = make(2);
    op.heads = op.kv_heads = 1;
    std::vector<float> values = Matrix::random(200, 96, dtype, 71).values();
    for (int row = 0; row < 200; ++row) {
      const bool far = row == 0 || row == 3 || row == 130 || row == 199;
      for (int c = 0; c < 32; ++c) values[row * 96 + c] = 1;
      for (int c = 32; c < 64 && far; ++c) values[row * 96 + c] = -kInf;
    }
    Matrix qkv(200, 96, dtype);
    qkv.set(values);
    CHECK(close(op.run(qkv, {0, 200}),
                op.expect(columns_of(qkv, 0, 200, 0, 32), columns_of(qkv, 0, 200, 32, 32),
                          columns_of(qkv, 0, 200, 64, 32), 200, 200)));
  }
}

TEST(cpu_attention_bits_depend_on_the_sequence_alone) {
  for (DType dtype : dtypes()) {
    for (bool causal : {false, true}) {
      // Many threads use smaller tiles.
      AttentionOp one, three, many;
      one.ops = make(1);
      three.ops = make(3);
      many.ops = make(16);
      one.mask.causal = three.mask.causal = many.mask.causal = causal;
      for (int32_t length : {1, 2, 5, 16, 31, 64, 65, 128, 129, 200, 513}) {
        const Matrix sequence = Matrix::random(length, 384, dtype, 61);
        const Matrix alone = one.run(sequence, {0, length});
        CHECK(many.run(sequence, {0, length}).same_rows(0, alone, 0, length));
        for (int32_t before : {0, 1, 13, 64, 70}) {
          const std::vector<int32_t> cu_seqlens = prefix_sums({before, length, 3, 150});
          Matrix batch = Matrix::random(cu_seqlens.back(), 384, dtype, 62);
          for (int32_t i = 0; i < length; ++i) batch.copy_row(before + i, sequence, i);
          if (before > 0) batch.fill_row(before - 1, kNaN);
          batch.fill_row(before + length, kInf);
          batch.fill_row(before + length + 10, kNaN);
          for (AttentionOp* op : {&one, &three}) {
            CHECK(op->run(batch, cu_seqlens).same_rows(before, alone, 0, length));
          }
        }
      }
    }
  }
}

TEST(cpu_attention_lets_nan_through_within_a_sequence) {
  AttentionOp op;
  op.ops = make(1);
  Matrix qkv = Matrix::random(40, 384, DType::kFloat32, 63);
  qkv.fill_row(7, kNaN);
  for (float value : op.run(qkv, {0, 40}).values()) CHECK(std::isnan(value));
}

TEST(pages_are_checked) {
  const auto backend = make(1);
  Matrix rows = Matrix::random(2, 16, DType::kFloat32, 71);
  Matrix pages = Matrix::random(kPageTokens, 16, DType::kFloat32, 72);
  Matrix scales = Matrix::random(1, kPageTokens, DType::kFloat32, 73);
  const std::vector<int32_t> cu_seqlens = {0, 2};
  const int32_t page = 0, length = 2;
  AppendKvCacheArgs args;
  args.k = args.v = rows.view();
  args.batch = batch_of(cu_seqlens);
  args.num_kv_heads = 1;
  args.head_dim = 16;
  args.pages.keys = args.pages.values = pages.view();
  args.pages.table = &page;
  args.pages.table_stride = 1;
  args.pages.kv_lens = &length;
  args.pages.max_kv_len = 2;
  backend.ops->append_kv_cache(args);
  args.pages.num_single = 2;
  CHECK_THROWS_WITH(backend.ops->append_kv_cache(args), "num_single is 2, expected 0 to 1");
  args.pages.num_single = 0;
  args.pages.key_scales = scales.view();
  CHECK_THROWS_WITH(backend.ops->append_kv_cache(args),
                    "key_scales are given, but the pages are not");
  args.pages.keys.dtype = args.pages.values.dtype = DType::kFloat8;
  CHECK_THROWS_WITH(backend.ops->append_kv_cache(args), "pages.value_scales is");
  args.pages.value_scales = scales.view();
  backend.ops->append_kv_cache(args);
}

}  // namespace
}  // namespace packhorse::cpu_test
