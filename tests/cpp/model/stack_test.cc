// The layers ask a key source for the keys that they attend to.
#include <cmath>
#include <cstring>
#include <vector>

#include "model/transformer.h"
#include "session/encoder_session.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::tiny_spec;
using packhorse::test::TinyWeights;

namespace {

// A page for each of two sequences, in every layer.
struct KvCache {
  KvCache(const LoadedModel& model)
      : head_dim(model.weights->stack.head_dim),
        rows(2 * model.spec.stack().layers.front().attention().num_kv_heads) {
    const size_t layers = model.spec.stack().layers.size();
    const auto size = static_cast<size_t>(rows * kPageTokens * head_dim);
    memory.assign(2 * layers, std::vector<float>(size, std::nanf("")));
  }
  std::vector<PagedKvCache> layers() {
    std::vector<PagedKvCache> pages(memory.size() / 2);
    for (size_t i = 0; i < pages.size(); ++i) {
      const auto view = [&](std::vector<float>& of) {
        return TensorView(of.data(), DType::kFloat32, rows * kPageTokens, head_dim);
      };
      pages[i] = {.keys = view(memory[2 * i]),
                  .values = view(memory[2 * i + 1]),
                  .table = table.data(),
                  .table_stride = 1,
                  .kv_lens = kv_lens.data(),
                  .max_kv_len = kPageTokens};
    }
    return pages;
  }
  int64_t head_dim, rows;
  std::vector<std::vector<float>> memory;
  const std::vector<int32_t> table = {1, 0};
  std::vector<int32_t> kv_lens = {0, 0};
};

struct TinyStack {
  explicit TinyStack(int64_t max_kv_len = 0) {
    SessionOptions options;
    options.max_tokens = 16;
    options.max_sequences = 2;
    options.threads = 1;
    Capacity capacity = capacity_of(options);
    capacity.max_kv_len = max_kv_len;
    model = load_encoder(tiny_spec(), *TinyWeights().source(), options);
    Arena counting;
    take_model_buffers(model.spec, *model.weights, capacity, *model.backend.ops, counting);
    memory = model.backend.device->allocate(counting.plan().bytes);
    Arena carving(memory->data(), counting.plan());
    buffers = take_model_buffers(model.spec, *model.weights, capacity, *model.backend.ops, carving);
  }

  void make_causal() {
    for (LayerSpec& layer : model.spec.stack().layers) {
      attention_of(layer.blocks.front())->causal = true;
    }
  }

  std::vector<float> run(KeySource& keys) {
    TokenBatch tokens;
    tokens.ids = ids.data();
    tokens.batch = {
        .num_tokens = 8, .num_sequences = 2, .max_seqlen = 4, .cu_seqlens = cu_seqlens.data()};
    Transformer(model.spec, *model.weights, buffers.stem, buffers.layers, *model.backend.ops)
        .run(tokens, keys);
    const auto* hidden = buffers.layers.hidden.as<const float>();
    return std::vector<float>(hidden, hidden + 8 * 24);
  }

  // Tokens [begin, end) of both sequences, whose earlier ones lie in the cache.
  std::vector<float> step(KvCache& cache, int32_t begin, int32_t end);

  const std::vector<int32_t> ids = {1, 2, 3, 4, 11, 12, 13, 14};
  const std::vector<int32_t> cu_seqlens = {0, 4, 8};
  LoadedModel model;
  std::unique_ptr<DeviceMemory> memory;
  ModelBuffers buffers;
};

// Copies keys and values to memory of its own, as a cache does. If `swapped`, its sequences are in
// another order.
class CopiedKeys final : public KeySource {
 public:
  explicit CopiedKeys(bool swap) : swap_(swap) {}

  Keys keys(size_t layer, const Keys& own) override {
    layers.push_back(layer);
    return {copy(own.k, k_), copy(own.v, v_), own.batch};
  }

  std::vector<size_t> layers;

 private:
  TensorView copy(const TensorView& from, std::vector<float>& to) const {
    const auto columns = static_cast<size_t>(from.columns());
    to.resize(8 * columns);
    for (size_t row = 0; row < 8; ++row) {
      const float* source = from.as<const float>() + row * static_cast<size_t>(from.row_stride);
      std::memcpy(to.data() + (swap_ ? (row + 4) % 8 : row) * columns, source,
                  columns * sizeof(float));
    }
    return TensorView(to.data(), DType::kFloat32, 8, from.columns());
  }

  bool swap_;
  std::vector<float> k_, v_;
};

std::vector<float> TinyStack::step(KvCache& cache, int32_t begin, int32_t end) {
  std::vector<int32_t> step_ids, positions;
  for (int32_t first : {0, 4}) {
    for (int32_t i = begin; i < end; ++i) {
      step_ids.push_back(ids[static_cast<size_t>(first + i)]);
      positions.push_back(i);
    }
  }
  const std::vector<int32_t> offsets = {0, end - begin, 2 * (end - begin)};
  cache.kv_lens = {end, end};
  const std::vector<PagedKvCache> layers = cache.layers();
  PagedKeys keys(layers);
  TokenBatch tokens;
  tokens.ids = step_ids.data();
  tokens.position_ids = positions.data();
  tokens.batch = {.num_tokens = offsets[2],
                  .num_sequences = 2,
                  .max_seqlen = end - begin,
                  .cu_seqlens = offsets.data()};
  Transformer(model.spec, *model.weights, buffers.stem, buffers.layers, *model.backend.ops)
      .run(tokens, keys);
  const auto* hidden = buffers.layers.hidden.as<const float>();
  return std::vector<float>(hidden, hidden + offsets[2] * 24);
}

}  // namespace

TEST(stack_takes_keys_from_anywhere) {
  TinyStack stack;
  OwnKeys own;
  const std::vector<float> expected = stack.run(own);
  CopiedKeys copied(false);
  CHECK(stack.run(copied) == expected);
  CHECK((copied.layers == std::vector<size_t>{0, 1}));
  // If sequences attend to each other's keys, the result differs.
  CopiedKeys swapped(true);
  CHECK(stack.run(swapped) != expected);
}

TEST(stack_takes_keys_from_pages) {
  TinyStack stack(kPageTokens);
  stack.make_causal();
  KvCache once(stack.model);
  const std::vector<float> whole = stack.step(once, 0, 4);
  // Tokens of earlier steps lie in the cache, and their keys are the same as those of this one.
  KvCache cache(stack.model);
  for (int32_t i = 0; i < 4; ++i) {
    const std::vector<float> found = stack.step(cache, i, i + 1);
    for (int32_t b = 0; b < 2; ++b) {
      CHECK(std::memcmp(&found[static_cast<size_t>(b) * 24],
                        &whole[static_cast<size_t>(4 * b + i) * 24], 24 * sizeof(float)) == 0);
    }
  }
  CHECK(cache.memory.size() == 4);
  TinyStack encoder;
  encoder.make_causal();
  OwnKeys own;
  const std::vector<float> expected = encoder.run(own);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(whole[i] - expected[i]) < 1e-5f);
}
