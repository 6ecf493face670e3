// The layers ask a key source for the keys that they attend to.
#include "model/stack.h"

#include <cstring>
#include <vector>

#include "model/encoder.h"
#include "session/loaded_model.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::tiny_spec;
using packhorse::test::TinyWeights;

namespace {

struct TinyStack {
  TinyStack() {
    SessionOptions options;
    options.max_tokens = 16;
    options.max_sequences = 2;
    options.threads = 1;
    model = load_model(tiny_spec().dump(), *TinyWeights().source(), options);
    Arena counting;
    take_model_buffers(model.spec, *model.weights, capacity_of(options), *model.backend.ops,
                       counting);
    memory = model.backend.device->allocate(counting.plan().bytes);
    Arena carving(memory->data(), counting.plan());
    buffers = take_model_buffers(model.spec, *model.weights, capacity_of(options),
                                 *model.backend.ops, carving);
  }

  std::vector<float> run(KeySource& keys) {
    TokenBatch tokens;
    tokens.ids = ids.data();
    tokens.batch = {
        .num_tokens = 8, .num_sequences = 2, .max_seqlen = 4, .cu_seqlens = cu_seqlens.data()};
    embed(model.spec.stem, model.weights->stem, buffers.stem, tokens, buffers.layers.hidden,
          *model.backend.ops);
    Stack(model.spec.stack, model.weights->stack, buffers.layers, *model.backend.ops)
        .run(tokens, keys);
    const auto* hidden = buffers.layers.hidden.as<const float>();
    return std::vector<float>(hidden, hidden + 8 * 24);
  }

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
