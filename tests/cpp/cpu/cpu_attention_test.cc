// Tests attention of the CPU backend.
#include "core/float8.h"
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

// Keys of a cache: rows of pages in a random order, of which one sequence has a table.
struct WeightsCase {
  WeightsCase(int64_t rows, int32_t heads, int32_t kv_heads, int32_t head_dim, int64_t keys,
              DType dtype)
      : q(Matrix::random(rows, heads * head_dim, dtype, 81)),
        pages(Matrix::random(6 * kv_heads * kPageTokens, head_dim, dtype, 82)),
        out(rows, keys, DType::kFloat32),
        kv_lens{1, static_cast<int32_t>(keys)} {
    args.q = q.view();
    args.pages.keys = args.pages.values = pages.view();
    args.pages.table = table.data();
    args.pages.table_stride = 4;
    args.pages.kv_lens = kv_lens.data();
    args.pages.max_kv_len = keys;
    args.sequence = 1;
    args.num_keys = keys;
    args.head = heads - 1;
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.scale = 0.3f;
    args.out = out.view();
  }
  // The row of a key of the last head in `pages`.
  int64_t place(int64_t key) const {
    const int64_t page = table[static_cast<size_t>(4 + key / kPageTokens)];
    return (page * args.num_kv_heads + args.num_kv_heads - 1) * kPageTokens + key % kPageTokens;
  }
  // Weights in float64, where each row of `pages` is multiplied by its scale.
  std::vector<double> expected(const std::vector<float>& numbers,
                               const std::vector<float>& scales) const {
    const std::vector<float> queries = q.values();
    std::vector<double> result;
    for (int64_t row = 0; row < q.rows; ++row) {
      std::vector<double> scores;
      double largest = -INFINITY, sum = 0;
      for (int64_t key = 0; key < args.num_keys; ++key) {
        double score = 0;
        for (int64_t c = 0; c < args.head_dim; ++c) {
          const auto at = static_cast<size_t>(row * q.columns + args.head * args.head_dim + c);
          const auto of_key = static_cast<size_t>(place(key) * args.head_dim + c);
          score += static_cast<double>(queries[at]) * static_cast<double>(numbers[of_key]);
        }
        score *= static_cast<double>(args.scale);
        if (!scales.empty()) {
          score *= static_cast<double>(scales[static_cast<size_t>(place(key))]);
        }
        scores.push_back(score);
        largest = std::max(largest, score);
      }
      for (double& score : scores) sum += score = std::exp(score - largest);
      for (const double score : scores) result.push_back(score / sum);
    }
    return result;
  }

  Matrix q, pages, out;
  std::vector<int32_t> kv_lens;
  std::vector<int32_t> table = {5, 5, 5, 5, 3, 0, 4, 2};
  AttentionWeightsArgs args;
};

TEST(cpu_attention_weights) {
  const auto ops = make(3);
  for (DType dtype : dtypes()) {
    for (const int64_t keys : {1, 17, 64, 65, 200}) {
      WeightsCase test(19, 4, 2, 80, keys, dtype);
      ops->attention_weights(test.args);
      CHECK(close(test.out, test.expected(test.pages.values(), {})));
      const Matrix together = test.out;
      // A row has the same bits alone.
      test.args.q = TensorView(test.q.row(11), dtype, 1, test.q.columns);
      test.args.out = test.args.out.first_rows(1);
      ops->attention_weights(test.args);
      CHECK(test.out.same_rows(0, together, 11, 1));
    }
  }
}

TEST(cpu_attention_weights_over_float8) {
  const auto ops = make(2);
  WeightsCase test(3, 2, 1, 32, 130, DType::kFloat32);
  std::vector<uint8_t> bytes;
  std::vector<float> numbers;
  for (const float value : test.pages.values()) {
    bytes.push_back(float32_to_float8(100 * value));
    numbers.push_back(float8_to_float32(bytes.back()));
  }
  const Matrix random = Matrix::random(6, kPageTokens, DType::kFloat32, 83, 0.01f);
  std::vector<float> scales = random.values();
  test.args.pages.keys = test.args.pages.values =
      TensorView(bytes.data(), DType::kFloat8, test.pages.rows, 32);
  test.args.pages.key_scales = test.args.pages.value_scales =
      TensorView(scales.data(), DType::kFloat32, 6, kPageTokens);
  ops->attention_weights(test.args);
  CHECK(close(test.out, test.expected(numbers, scales)));
}

TEST(attention_weights_are_checked) {
  const auto ops = make(1);
  WeightsCase test(2, 2, 2, 16, 70, DType::kFloat32);
  AttentionWeightsArgs args = test.args;
  args.head = 2;
  CHECK_THROWS_WITH(ops->attention_weights(args), "head 2, expected 0 or more, and a head below 2");
  args = test.args;
  args.num_keys = 0;
  args.out = TensorView(test.out.bytes.data(), DType::kFloat32, 2, 0);
  CHECK_THROWS_WITH(ops->attention_weights(args), "num_keys is 0, expected 1 to 70");
  args = test.args;
  args.head_dim = 528;
  CHECK_THROWS_WITH(ops->attention_weights(args), "head_dim is 528, expected at most 512");
  args = test.args;
  args.out.dtype = DType::kBFloat16;
  CHECK_THROWS_WITH(ops->attention_weights(args), "out");
}

// Queries in float32, one of each sequence, over pages in bfloat16 that all sequences share: those
// of cross attention to one source. They may be rounded.
struct RoundedCase {
  RoundedCase(int64_t rows, int64_t keys)
      : q(Matrix::random(rows, 2 * kHeadDim, DType::kFloat32, 84)),
        out(rows, 2 * kHeadDim, DType::kFloat32),
        cu_seqlens(prefix_sums(std::vector<int32_t>(static_cast<size_t>(rows), 1))),
        kv_lens(static_cast<size_t>(rows), static_cast<int32_t>(keys)) {
    for (int64_t i = 0; i < rows; ++i) table.insert(table.end(), {3, 0, 2});
  }
  void run(const CpuBackend& ops, int64_t first, int64_t rows) {
    AttentionArgs args;
    args.q = TensorView(q.row(first), DType::kFloat32, rows, q.columns);
    args.out = TensorView(out.row(first), DType::kFloat32, rows, q.columns);
    args.queries = {.num_tokens = rows,
                    .num_sequences = rows,
                    .max_seqlen = 1,
                    .cu_seqlens = cu_seqlens.data()};
    args.num_heads = args.num_kv_heads = 2;
    args.head_dim = kHeadDim;
    args.scale = 0.3f;
    args.rounded = true;
    args.pages.keys = keys.view();
    args.pages.values = values.view();
    args.pages.table = table.data();
    args.pages.table_stride = 3;
    args.pages.kv_lens = kv_lens.data();
    args.pages.max_kv_len = kv_lens.front();
    std::vector<std::byte> workspace(ops->paged_attention_workspace(args));
    args.workspace = workspace.data();
    ops->attention(args);
  }
  std::vector<double> expected() const {
    const std::vector<float> queries = q.values(), k = keys.values(), v = values.values();
    std::vector<double> result;
    for (int64_t row = 0; row < q.rows; ++row) {
      for (int64_t head = 0; head < 2; ++head) {
        std::vector<double> sums(kHeadDim);
        double total = 0;
        for (int64_t key = 0; key < kv_lens.front(); ++key) {
          const int64_t page = table[static_cast<size_t>(key / kPageTokens)];
          const int64_t place = (2 * page + head) * kPageTokens + key % kPageTokens;
          double score = 0;
          for (int64_t c = 0; c < kHeadDim; ++c) {
            score += static_cast<double>(queries[at(2 * row + head, c)]) *
                     static_cast<double>(k[at(place, c)]);
          }
          const double weight = std::exp(0.3 * score);
          total += weight;
          for (int64_t c = 0; c < kHeadDim; ++c) {
            sums[static_cast<size_t>(c)] += weight * static_cast<double>(v[at(place, c)]);
          }
        }
        for (const double sum : sums) result.push_back(sum / total);
      }
    }
    return result;
  }
  static size_t at(int64_t row, int64_t c) { return static_cast<size_t>(row * kHeadDim + c); }

  static constexpr int64_t kHeadDim = 64;
  Matrix q, out;
  Matrix keys = Matrix::random(4 * 2 * kPageTokens, kHeadDim, DType::kBFloat16, 85, 0.5f);
  Matrix values = Matrix::random(4 * 2 * kPageTokens, kHeadDim, DType::kBFloat16, 86);
  std::vector<int32_t> cu_seqlens, kv_lens, table;
};

TEST(cpu_attention_of_float32_over_bfloat16_pages) {
  const auto ops = make(3);
  for (const int64_t rows : {1, 5, 9, 40}) {
    for (const int64_t keys : {1, 33, 64, 150}) {
      RoundedCase test(rows, keys);
      test.run(ops, 0, rows);
      CHECK(close(test.out, test.expected(), 3000.0));
      // A row has the same bits alone.
      const Matrix together = test.out;
      for (int64_t row = 0; row < rows; ++row) test.run(ops, row, 1);
      CHECK(test.out.same_rows(0, together, 0, rows));
    }
  }
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
