// Runs the whole path in C++, mostly so that the sanitizers see it. Tests in Python check the
// numbers.
#include "packhorse/session.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test.h"
#include "tiny_model.h"

using namespace packhorse;
using packhorse::test::spec_of_all_heads;
using packhorse::test::tiny_spec;
using packhorse::test::TinyWeights;

namespace {

SessionOptions small_options() {
  SessionOptions options;
  options.max_tokens = 100;
  options.max_sequences = 4;
  options.threads = 2;
  return options;
}

struct Batch {
  std::vector<int32_t> ids;
  std::vector<int32_t> cu_seqlens;
  PackedTokens view() const {
    return {.ids = ids, .cu_seqlens = cu_seqlens, .type_ids = {}, .position_ids = {}};
  }
};

std::vector<float> hidden(Session& session, const Batch& batch) {
  std::vector<float> result(batch.ids.size() * 24);
  RunOutputs outputs;
  outputs.hidden = result.data();
  session.run(batch.view(), outputs);
  return result;
}

}  // namespace

TEST(session_runs_and_survives_errors) {
  const TinyWeights weights;
  const auto session = Session::load(tiny_spec(), *weights.source(), small_options());
  const Batch batch{{1, 2, 3, 4, 5, 6, 7}, {0, 3, 3, 7}};
  const std::vector<float> first = hidden(*session, batch);
  for (const float value : first) CHECK(std::isfinite(value));

  CHECK_THROWS_WITH(hidden(*session, {{1, 50}, {0, 2}}), "ids[1] = 50");
  CHECK_THROWS_WITH(hidden(*session, {{1, 2}, {0, 3}}), "cu_seqlens");
  CHECK_THROWS_WITH(hidden(*session, {std::vector<int32_t>(101, 1), {0, 30, 60, 90, 101}}),
                    "max_tokens = 100");
  CHECK_THROWS_WITH(hidden(*session, {std::vector<int32_t>(31, 1), {0, 31}}), "max_seqlen = 30");
  CHECK(hidden(*session, batch) == first);

  // A sequence has the same bits alone as in a batch.
  const std::vector<float> alone = hidden(*session, {{4, 5, 6, 7}, {0, 4}});
  CHECK(alone == std::vector<float>(first.begin() + 3 * 24, first.end()));
  CHECK(hidden(*session, {{}, {0}}).empty());
}

TEST(session_refuses_views_that_cannot_be) {
  TinyWeights weights;
  const auto load = [&] { Session::load(tiny_spec(), *weights.source(), small_options()); };
  const std::string name = "embeddings.word";
  const TensorView good = weights.views[name];
  weights.views[name].data = nullptr;
  CHECK_THROWS_WITH(load(), "tensor 'embeddings.word' is float32[50, 24], but its data is null");
  weights.views[name] = good;
  weights.views[name].dtype = static_cast<DType>(77);
  CHECK_THROWS_WITH(load(), "a dtype has the number 77");
  weights.views[name] = good;
  weights.views[name].rank = 9;
  CHECK_THROWS_WITH(load(), "tensor 'embeddings.word' has 9 dimensions, expected at most 4");
  weights.views[name] = good;
  load();
}

TEST(session_says_how_a_folder_is_converted) {
  CHECK_THROWS_WITH(Session::load("/nowhere", SessionOptions()),
                    "'/nowhere' has no packhorse.json, expected a folder written by `packhorse "
                    "convert MODEL FOLDER`");
}

TEST(session_pools) {
  const TinyWeights weights;
  const auto session = Session::load(tiny_spec(), *weights.source(), small_options());
  const Batch batch{{1, 2, 3, 4, 5, 6, 7}, {0, 3, 3, 7}};
  std::vector<float> embedding(3 * 24, 9.0f);
  std::vector<float> pooled(3 * 24, 9.0f);
  session->run(batch.view(), {.embedding = embedding.data(), .pooled = pooled.data()});
  for (int row : {0, 2}) {
    float sum = 0;
    for (int i = 0; i < 24; ++i) sum += embedding[row * 24 + i] * embedding[row * 24 + i];
    CHECK(std::abs(sum - 1) < 1e-5f);
  }
  for (int i = 24; i < 48; ++i) CHECK(embedding[i] == 0 && pooled[i] == 0);
  for (const float value : pooled) CHECK(std::abs(value) <= 1);
}

TEST(session_names_the_outputs_that_a_model_has) {
  const TinyWeights weights;
  const auto session = Session::load(tiny_spec(), *weights.source(), small_options());
  std::string names;
  for (const OutputShape& shape : session->outputs()) names += shape.name + " ";
  CHECK(names == "hidden embedding pooled ");
  std::vector<float> logits(2);
  const Batch batch{{1}, {0, 1}};
  CHECK_THROWS_WITH(session->run(batch.view(), {.logits = logits.data()}),
                    "'logits' was asked for, but this model has: hidden, embedding, pooled");
}

TEST(session_runs_every_head) {
  const TinyWeights weights;
  SessionOptions options = small_options();
  options.max_predictions = 4;
  const auto session = Session::load(spec_of_all_heads(), *weights.source(), options);
  CHECK(session->embedding_size() == 5);
  const std::vector<OutputShape> shapes = session->outputs();
  CHECK(shapes.size() == kOutputNames.size());
  const std::vector<int32_t> rows = {0, 3, 89};
  std::vector<int32_t> ids(90);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 50);
  const Batch batch{ids, {0, 30, 60, 60, 90}};
  PackedTokens view = batch.view();
  view.prediction_rows = rows;
  RunOutputs outputs;
  std::vector<std::vector<float>> values;
  for (size_t i = 0; i < shapes.size(); ++i) {
    CHECK(shapes[i].name == kOutputNames[i]);
    const size_t count = shapes[i].name == "predictions" ? 3 : shapes[i].per_token ? 90 : 4;
    values.emplace_back(count * static_cast<size_t>(shapes[i].columns), NAN);
  }
  for (size_t i = 0; i < shapes.size(); ++i) outputs[i] = values[i].data();
  session->run(view, outputs);
  for (const std::vector<float>& output : values) {
    for (const float value : output) CHECK(std::isfinite(value));
  }
  // The second row belongs to the first sequence, so none of its predictions exceeds the sparse
  // vector.
  for (size_t i = 0; i < 50; ++i) {
    CHECK(std::log1p(std::max(0.0f, values[7][50 + i])) <= values[6][i] + 1e-6f);
    CHECK(values[6][100 + i] == 0);  // the sparse vector of the empty sequence
  }
  const std::vector<int32_t> twice = {3, 3};
  view.prediction_rows = twice;
  CHECK_THROWS_WITH(session->run(view, outputs), "expected each row once, in ascending order");
}

TEST(session_plans_before_loading) {
  const TinyWeights weights;
  SessionOptions options = small_options();
  const MemoryPlan plan = plan_memory(tiny_spec(), options);
  const auto session = Session::load(tiny_spec(), *weights.source(), options);
  CHECK(plan.total_bytes() == session->memory_plan().total_bytes());
  options.memory_limit = plan.total_bytes();
  Session::load(tiny_spec(), *weights.source(), options);
  options.memory_limit = plan.total_bytes() - 1;
  CHECK_THROWS_AS(OutOfMemory, Session::load(tiny_spec(), *weights.source(), options),
                  "memory_limit");
}

namespace {

// A file that somebody truncates when the first tensor of a layer is asked for.
class Truncated : public WeightSource {
 public:
  Truncated(std::string path, std::unique_ptr<WeightSource> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  TensorView find(const std::string& name) const override {
    if (name.starts_with("layers.")) std::filesystem::resize_file(path_, 4096);
    return file_->find(name);
  }
  std::vector<std::string> names() const override { return file_->names(); }
  void release(const void* data, size_t bytes) const override { file_->release(data, bytes); }

 private:
  std::string path_;
  std::unique_ptr<WeightSource> file_;
};

}  // namespace

TEST(session_loads_of_a_file_that_is_truncated_meanwhile) {
  const TinyWeights weights;
  const auto path =
      std::filesystem::temp_directory_path() / ("packhorse-truncated-" + std::to_string(getpid()));
  weights.write(path.string());
  Session::load(tiny_spec(), *open_safetensors({path.string()}), small_options());
  const Truncated source(path.string(), open_safetensors({path.string()}));
  CHECK_THROWS_AS(RuntimeError, Session::load(tiny_spec(), source, small_options()),
                  "the file was truncated while it was read");
  std::filesystem::remove(path);
}

TEST(session_refuses_weights_by_name) {
  const auto load = [](TinyWeights& weights) {
    return Session::load(tiny_spec(), *weights.source(), small_options());
  };
  TinyWeights missing;
  missing.views.erase("layers.1.ffn.up.weight");
  CHECK_THROWS_WITH(load(missing), "'layers.1.ffn.up.weight' [40, 24] is missing");
  TinyWeights reshaped;
  reshaped.views["pooler.bias"] =
      TensorView(reshaped.values["pooler.bias"].data(), DType::kFloat32, 4, 6);
  CHECK_THROWS_WITH(load(reshaped), "'pooler.bias' is float32[4, 6]");
  TinyWeights poisoned;
  poisoned.values["layers.0.attention.key.weight"][30] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH(load(poisoned), "'layers.0.attention.key.weight' holds nan at element 30");
}

TEST(sessions_on_the_cpu_have_no_device_arrays) {
  const TinyWeights weights;
  const auto session = Session::load(tiny_spec(), *weights.source(), small_options());
  const Batch batch{{1, 2, 3}, {0, 3}};
  const DeviceTokens there = {.ids = batch.ids.data(),
                              .cu_seqlens = batch.cu_seqlens.data(),
                              .num_tokens = 3,
                              .num_sequences = 1};
  const char* message = "runs on cpu: batches and outputs are in host memory";
  CHECK(session->stream() == 0);
  session->wait_for(0);
  CHECK_THROWS_WITH(session->wait_for(1), message);
  CHECK_THROWS_WITH(session->run_on_device(batch.view(), {.hidden = true}), message);
  CHECK_THROWS_WITH(session->run_on_device(there, {.hidden = true}), message);
  CHECK_THROWS_WITH(session->run(there, RunOutputs()), message);
  SessionOptions options = small_options();
  options.output_slots = -1;
  CHECK_THROWS_WITH(plan_memory(tiny_spec(), options), "output_slots is -1");
}
