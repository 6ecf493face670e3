// Models whose widths are no multiple of what a device's rows have to be: padded, they give what
// they give unpadded. The CPU takes any width, so that it can play such a device.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model/transformer.h"
#include "packhorse/error.h"
#include "session/encoder_session.h"
#include "session/output_slots.h"
#include "session/outputs.h"
#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::patched;
using packhorse::test::tiny_spec;

namespace {

constexpr int64_t kMultiple = 8;
constexpr int64_t kLine = 16;  // 16-bit numbers

/// The ops of another backend, for rows of whole multiples.
class PaddedOps final : public Ops {
 public:
  explicit PaddedOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  int64_t width_multiple() const override { return kMultiple; }
  int64_t line_bytes() const override { return 2 * kLine; }
  int64_t head_dim_multiple() const override { return ops_->head_dim_multiple(); }
  size_t linear_workspace(const LinearArgs& args) const override {
    return ops_->linear_workspace(args);
  }
  size_t feed_forward_workspace(const FeedForwardArgs& args) const override {
    return ops_->feed_forward_workspace(args);
  }
  size_t attention_workspace(const AttentionArgs& args) const override {
    return ops_->attention_workspace(args);
  }
  size_t paged_attention_workspace(const AttentionArgs& args) const override {
    return ops_->paged_attention_workspace(args);
  }
  size_t sparse_pool_workspace(const SparsePoolArgs& args) const override {
    return ops_->sparse_pool_workspace(args);
  }
  size_t sample_workspace(const SampleArgs& args) const override {
    return ops_->sample_workspace(args);
  }
  size_t cca_workspace(const CcaArgs& args) const override { return ops_->cca_workspace(args); }
  size_t moe_workspace(const MoeArgs& args) const override { return ops_->moe_workspace(args); }

 private:
  void do_embed(const EmbedArgs& args) override { ops_->embed(args); }
  void do_linear(const LinearArgs& args) override { ops_->linear(args); }
  void do_feed_forward(const FeedForwardArgs& args) override { ops_->feed_forward(args); }
  void do_unfold(const UnfoldArgs& args) override { ops_->unfold(args); }
  void do_rotation(const RotationArgs& args) override { ops_->rotation(args); }
  void do_rope(const RopeArgs&) override {}  // within do_qkv_rope
  void do_qkv_rope(const LinearArgs& args, const RopeArgs& heads) override {
    ops_->qkv_rope(args, heads);
  }
  void do_attention(const AttentionArgs& args) override { ops_->attention(args); }
  void do_norm(const NormArgs& args) override { ops_->norm(args); }
  void do_pool(const PoolArgs& args) override { ops_->pool(args); }
  void do_sparse_pool(const SparsePoolArgs& args) override { ops_->sparse_pool(args); }
  void do_log_softmax(const LogSoftmaxArgs& args) override { ops_->log_softmax(args); }
  void do_cast(const CastArgs& args) override { ops_->cast(args); }
  void do_append_kv_cache(const AppendKvCacheArgs& args) override { ops_->append_kv_cache(args); }
  void do_paged_attention(const AttentionArgs& args) override { ops_->attention(args); }
  void do_attention_weights(const AttentionWeightsArgs& args) override {
    ops_->attention_weights(args);
  }
  void do_sample(const SampleArgs& args) override { ops_->sample(args); }
  void do_count_tokens(const CountTokensArgs& args) override { ops_->count_tokens(args); }
  void do_begin_step(const BeginStepArgs& args) override { ops_->begin_step(args); }
  void do_add_lora(const LoraArgs& args) override { ops_->add_lora(args); }
  void do_feed_forward_up(const FeedForwardUpArgs& args) override { ops_->feed_forward_up(args); }
  void do_activate(const ActivateArgs& args) override { ops_->activate(args); }
  void do_cca(const CcaArgs& args) override { ops_->cca(args); }
  void do_moe(const MoeArgs& args) override { ops_->moe(args); }
  void do_add_scaled(const AddScaledArgs& args) override { ops_->add_scaled(args); }
  void do_embed_patches(const EmbedPatchesArgs& args) override { ops_->embed_patches(args); }
  void do_probe_attention(const ProbeAttentionArgs& args) override { ops_->probe_attention(args); }

  std::unique_ptr<Ops> ops_;
};

SessionOptions options_for(const std::string& spec) {
  SessionOptions options;
  options.max_tokens = 16;
  options.max_sequences = 5;
  options.max_predictions = parse_spec(spec).heads.masked_lm ? 3 : 0;
  options.threads = 1;
  return options;
}

using Outputs = std::vector<std::vector<float>>;

/// Everything of one model, up to one batch of 11 tokens.
class Model {
 public:
  Model(const std::string& spec, const WeightSource& source, bool padded) {
    model_.options = options_for(spec);
    model_.spec = parse_spec(spec);
    model_.layouts = output_layouts(model_.spec, capacity());
    model_.backend = make_backend({}, {.threads = 1});
    if (padded) {
      model_.backend.ops = std::make_unique<PaddedOps>(std::move(model_.backend.ops));
    }
    const Precision precision = precision_of(DType::kFloat32, false, *model_.backend.packer);
    const ModelWeights planned = plan_weights(model_.spec, precision, model_.backend);
    model_.weights = load_weights(model_.spec, precision, model_.backend, planned.plan, source);
    Arena counting;
    take_buffers(planned, counting);
    memory_ = model_.backend.device->allocate(counting.plan().bytes);
    std::memset(memory_->data(), 0xff, memory_->bytes());  // NaN: nothing is read unwritten
    Arena carving(memory_->data(), counting.plan());
    take_buffers(*model_.weights, carving);
    tokens_.ids = ids_.data();
    tokens_.batch = {
        .num_tokens = 11, .num_sequences = 4, .max_seqlen = 7, .cu_seqlens = cu_seqlens_.data()};
    if (takes_patches(model_.spec)) {
      const int64_t columns = model_.spec.stack().stem.patches.features;
      for (int64_t i = 0; i < kPatches * columns; ++i) {
        features_.push_back(std::sin(static_cast<float>(i)));
      }
      tokens_.ids = nullptr;
      tokens_.batch.cu_seqlens = cu_patches_.data();
      tokens_.features = TensorView(features_.data(), DType::kFloat32, kPatches, columns);
      tokens_.grids = grids_.data();
      tokens_.prefix = model_.spec.stack().stem.patches.prefix;
    }
    tokens_.prediction_rows = rows_.data();
    tokens_.num_predictions = model_.layouts.predictions.exists() ? 2 : 0;
    OwnKeys keys;
    Transformer(model_.spec, *model_.weights, buffers_.stem, buffers_.layers, *model_.backend.ops)
        .run(tokens_, keys);
  }

  /// The padding of hidden states is zeros, to the bit of what weights would multiply it with.
  void check_padding() const {
    const TensorView hidden = buffers_.layers.hidden.first_rows(11);
    CHECK(hidden.columns() % kMultiple == 0);
    for (int64_t row = 0; row < 11; ++row) {
      for (int64_t i = model_.spec.stack().hidden_size; i < hidden.columns(); ++i) {
        CHECK(hidden.as<const float>()[row * hidden.row_stride + i] == 0);
      }
    }
  }

  /// Returns the outputs as the host gets them.
  Outputs read() {
    Outputs values = make_outputs();
    RunOutputs to;
    for (size_t i = 0; i < values.size(); ++i) {
      if (model_.layouts[i].exists()) to[i] = values[i].data();
    }
    SessionOutputs(model_, buffers_).read(tokens_, to);
    return values;
  }

  /// Returns the outputs as arrays that stay on a device hold them: contiguous, of the model's
  /// widths.
  Outputs write() {
    DeviceOutputSet all;
    for (size_t i = 0; i < kOutputNames.size(); ++i) all[i] = model_.layouts[i].exists();
    const std::array<int32_t, 2> counts = {11, 4};
    SessionOutputs(model_, buffers_).write(tokens_, counts.data(), all, slots_.front());
    Outputs values = make_outputs();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!model_.layouts[i].exists()) continue;
      CHECK(slots_.front()[i].columns() == model_.layouts[i].columns);
      std::memcpy(values[i].data(), slots_.front()[i].data, values[i].size() * sizeof(float));
    }
    return values;
  }

 private:
  Capacity capacity() const { return capacity_of(model_.options); }

  void take_buffers(const ModelWeights& weights, Arena& arena) {
    slots_ = take_output_slots(model_.layouts, capacity(), DType::kFloat32, 1, arena);
    buffers_ = take_model_buffers(model_.spec, weights, capacity(), *model_.backend.ops, arena);
  }

  Outputs make_outputs() const {
    Outputs values;
    for (size_t i = 0; i < kOutputNames.size(); ++i) {
      const OutputLayout& layout = model_.layouts[i];
      values.emplace_back(static_cast<size_t>(layout.rows(tokens_) * layout.columns), NAN);
    }
    return values;
  }

  const std::vector<int32_t> ids_ = {1, 2, 3, 4, 11, 12, 13, 14, 49, 0, 7};
  const std::vector<int32_t> cu_seqlens_ = {0, 3, 3, 10, 11};
  const std::vector<int32_t> rows_ = {1, 9};
  // Images with a row before the patches of each.
  static constexpr int64_t kPatches = 8;
  const std::vector<int32_t> grids_ = {2, 1, 0, 0, 1, 5, 1, 1};
  const std::vector<int32_t> cu_patches_ = {0, 3, 3, 9, 11};
  std::vector<float> features_;
  LoadedModel model_;
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<OutputBuffers> slots_;
  ModelBuffers buffers_;
  TokenBatch tokens_;
};

/// Random values for every tensor that a model asks for, of the shape that it asks for.
class AnyWeights {
 public:
  explicit AnyWeights(const std::string& spec) {
    for (;;) {
      try {
        load_encoder(spec, *source(), options_for(spec));
        return;
      } catch (const InvalidArgument& error) {
        // "... 'name' [shape] is missing ..."
        const std::string message = error.what();
        const size_t end = message.find("] is missing");
        if (end == message.npos) throw;
        const size_t shape = message.rfind('[', end);
        const size_t after_name = message.rfind('\'', shape);
        const size_t name = message.rfind('\'', after_name - 1) + 1;
        add(message.substr(name, after_name - name),
            extents(message.substr(shape + 1, end - shape - 1)));
      }
    }
  }

  std::unique_ptr<WeightSource> source() const { return borrow_tensors(views_); }

 private:
  // The numbers of "4, 6".
  static std::vector<int64_t> extents(const std::string& text) {
    std::istringstream stream(text);
    std::vector<int64_t> result;
    for (int64_t extent; stream >> extent; stream.ignore()) result.push_back(extent);
    return result;
  }

  void add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    const bool is_norm = name.find("norm.") != name.npos;
    const auto columns = static_cast<float>(size / shape[0]);
    std::normal_distribution<float> normal(is_norm && name.ends_with("weight") ? 1.0f : 0.0f,
                                           is_norm ? 0.2f : 1.5f / std::sqrt(columns));
    std::vector<float>& values = values_[name];
    for (int64_t i = 0; i < size; ++i) values.push_back(normal(random_));
    TensorView view(values.data(), DType::kFloat32, shape[0], shape.size() > 1 ? shape[1] : 1);
    view.rank = static_cast<int>(shape.size());
    if (shape.size() > 2) view.shape[2] = shape[2];
    view.row_stride = size / shape[0];
    views_[name] = view;
  }

  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, TensorView> views_;
  std::mt19937 random_{3};
};

/// Returns a spec with heads of five columns, so that hidden, head and inner widths all need
/// padding.
std::string narrow_spec(const std::string& changes = "{}") {
  return patched(tiny_spec(R"({"hidden_size": 21, "head_dim": 5, "intermediate_size": 13})"),
                 changes);
}

void check(const std::string& spec) {
  const AnyWeights weights(spec);
  Model plain(spec, *weights.source(), false);
  Model padded(spec, *weights.source(), true);
  padded.check_padding();
  const Outputs expected = plain.read();
  const Outputs found = padded.read();
  CHECK(padded.write() == found);
  for (size_t i = 0; i < kOutputNames.size(); ++i) {
    CHECK(found[i].size() == expected[i].size());
    for (size_t j = 0; j < expected[i].size(); ++j) {
      const float tolerance = 2e-5f * (1 + std::abs(expected[i][j]));
      if (std::abs(found[i][j] - expected[i][j]) <= tolerance) continue;
      test::fail(__FILE__, __LINE__,
                 std::string(kOutputNames[i]) + " of " + spec + ": found " +
                     std::to_string(found[i][j]) + ", expected " + std::to_string(expected[i][j]));
      break;
    }
  }
}

}  // namespace

TEST(padded_widths_change_no_head) {
  const std::string heads = narrow_spec(R"({"heads": {
    "classifier": {"input": "pooler", "labels": ["a", "b", "c"]},
    "masked_lm": {"activation": "gelu", "sparse": true},
    "vectors": {"dense": [{"size": 21, "residual": true}], "size": 11, "residual": true},
    "token_weights": true}})");
  check(heads);
  for (const char* input : {"cls", "mean", "last", "tokens"}) {
    check(patched(heads, R"({"heads": {"pooler": null, "classifier": {
      "dense": {"activation": "gelu", "norm": true}, "input": ")" +
                             std::string(input) + R"("}}})"));
  }
}

TEST(padded_widths_change_no_embedding) {
  for (const char* pooling :
       {R"("cls")", R"("max")", R"("weighted_mean")", R"(["mean", "max", "last"])"}) {
    for (const bool normalize : {false, true}) {
      const auto with = [&](const std::string& layers) {
        return narrow_spec(R"({"embedding": {"pooling": )" + std::string(pooling) +
                           R"(, "normalize": )" + (normalize ? "true" : "false") +
                           R"(, "dense": )" + layers + "}}");
      };
      check(with("null"));
      // Layers that add their input: of its size, and of another.
      const std::string same =
          std::string(R"({"residual": true, "size": )") + (pooling[0] == '[' ? "63" : "21") + "}";
      check(with("[" + same + "]"));
      check(with("[" + same + ", " + same + R"(, {"residual": true, "size": 10}])"));
    }
  }
}

TEST(padded_widths_change_no_layer) {
  check(narrow_spec(R"({"embedding_size": 10, "heads": {
    "masked_lm": {"activation": "gelu"}}})"));
  check(narrow_spec(R"({"embedding_size": 30})"));
  check(narrow_spec(R"({"intermediate_size": 130})"));  // to nine lines of 16
  check(narrow_spec(R"({"norm": {"kind": "rms", "placement": "pre", "embeddings": false},
    "ffn": {"kind": "gated", "activation": "silu"}, "num_kv_heads": 1, "head_dim": 6,
    "attention": {"mask": "causal", "rope": {"theta": 100}, "qk_norm": true}})"));
  check(narrow_spec(R"({"norm": {"placement": "pre", "bias": false}})"));
  check(narrow_spec(R"({"convolution": {"width": 3, "activation": "tanh"},
    "attention": {"score_term": {"kind": "disentangled", "buckets": 8, "max_distance": 20,
      "content_to_position": true, "position_to_content": true, "shared_projections": true,
      "norm": true}}})"));
  for (int size : {1, 2, 7, 9, 16}) {
    check(narrow_spec(R"({"hidden_size": )" + std::to_string(size) + "}"));
  }
}

TEST(padded_widths_change_no_image) {
  const std::string images = R"({"format": 2, "max_seqlen": 64, "stacks": {"encoder": {
    "hidden_size": 21,
    "stem": {"kind": "patches", "features": 13, "prefix": 1, "norm": false,
      "positions": {"kind": "grid", "rows": 2, "columns": 3, "resize": "cubic"}},
    "norm": {"kind": "layer", "placement": "pre", "eps": 1e-6},
    "layers": [{"blocks": [
      {"kind": "self_attention", "num_heads": 3, "num_kv_heads": 3, "head_dim": 7,
        "mask": "bidirectional", "qkv_bias": true},
      {"kind": "feed_forward", "size": 13, "activation": "gelu"}]}]}},
    "heads": {"probe": {"num_heads": 3, "size": 19, "activation": "gelu_tanh"}},
    "embedding": {"pooling": "probe", "normalize": true}})";
  check(images);
  check(patched(images, R"({"heads": {"probe": null, "classifier": {
    "input": ["cls", "patch_mean"], "labels": ["a", "b"]}}, "embedding": {"pooling": "cls"}})"));
}
