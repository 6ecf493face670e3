#include <algorithm>
#include <string>

#include "core/format.h"
#include "model/heads.h"

namespace packhorse {
namespace {

class HeadBuffers {
 public:
  HeadBuffers(const Spec& spec, const Capacity& capacity, DType dtype, const Ops& ops, Arena& arena,
              EncoderBuffers& buffers)
      : spec_(spec),
        capacity_(capacity),
        dtype_(dtype),
        ops_(ops),
        arena_(arena),
        buffers_(buffers) {}

  // Every head has scratch of its own, in the same bytes.
  void take() {
    take_outputs();
    const bool pools =
        spec_.heads.pooler || (spec_.heads.classifier && !spec_.heads.classifier->per_token());
    if (pools) buffers_.head_input = matrix("head_input", sequences(), spec_.hidden_size);
    count_workspaces();
    if (workspace_ > 0) buffers_.head_workspace = arena_.take("head_workspace", workspace_);
    if (!spec_.heads.embedding.dense.empty()) take_embedding();
    if (spec_.heads.classifier) take_classifier();
    if (spec_.heads.token_weights) {
      const Arena::Scope scope(arena_);
      buffers_.padded_token_weights = matrix("padded_token_weights", tokens(), padded(1));
    }
    if (spec_.heads.vectors) {
      const Arena::Scope scope(arena_);
      take_dense("vectors_", tokens(),
                 dense_columns(spec_.hidden_size, spec_.heads.vectors->layers, ops_),
                 buffers_.vectors_dense);
    }
    if (spec_.heads.masked_lm) take_masked_lm();
  }

 private:
  int64_t tokens() const { return capacity_.max_tokens; }
  int64_t sequences() const { return capacity_.max_sequences; }
  int64_t padded(int64_t features) const { return padded_features(features, ops_); }
  // Rows of the masked language model.
  int64_t vocabulary_rows() const {
    return spec_.heads.masked_lm->sparse ? tokens() : capacity_.max_predictions;
  }

  TensorView matrix(const std::string& name, int64_t rows, int64_t columns) {
    return take_matrix(arena_, name.c_str(), rows, columns, dtype_);
  }

  std::vector<int64_t> embedding_columns() const {
    return dense_columns(spec_.pooled_columns(), spec_.heads.embedding.dense, ops_);
  }
  void take_dense(const char* name, int64_t rows, const std::vector<int64_t>& columns,
                  std::vector<TensorView>& buffers) {
    for (size_t i = 1; i < columns.size(); ++i) {
      buffers.push_back(matrix(concat(name, i - 1), rows, columns[i]));
    }
  }
  void count_dense(int64_t rows, const std::vector<int64_t>& columns) {
    for (size_t i = 1; i < columns.size(); ++i) count(rows, columns[i - 1], columns[i]);
  }

  // Beside `hidden`, which is there.
  void take_outputs() {
    const PerOutput<OutputLayout> layouts = output_layouts(spec_, capacity_);
    buffers_.outputs.hidden = buffers_.hidden;
    for (size_t i = 1; i < kOutputNames.size(); ++i) {
      const OutputLayout& layout = layouts[i];
      if (!layout.exists()) continue;
      buffers_.outputs[i] = take_matrix(
          arena_, kOutputNames[i], layout.rows(tokens(), sequences(), capacity_.max_predictions),
          layout.columns, layout.is_float32 ? DType::kFloat32 : dtype_);
    }
  }

  void count(int64_t rows, int64_t in_features, int64_t out_features) {
    workspace_ =
        std::max(workspace_, ops_.linear_workspace(rows, in_features, out_features, dtype_));
  }

  void count_workspaces() {
    const int64_t hidden_size = spec_.hidden_size;
    if (spec_.heads.pooler) count(sequences(), hidden_size, hidden_size);
    count_dense(sequences(), embedding_columns());
    if (spec_.heads.classifier) {
      const int64_t rows = classifier_rows();
      if (spec_.heads.classifier->dense) count(rows, hidden_size, hidden_size);
      count(rows, hidden_size, padded(spec_.heads.classifier->num_labels));
    }
    if (spec_.heads.token_weights) count(tokens(), hidden_size, padded(1));
    if (spec_.heads.vectors) {
      count_dense(tokens(), dense_columns(hidden_size, spec_.heads.vectors->layers, ops_));
    }
    if (spec_.heads.masked_lm) {
      count(vocabulary_rows(), hidden_size, spec_.stem.embedding_size);
      count(capacity_.max_predictions, spec_.stem.embedding_size, padded(spec_.stem.vocab_size));
    }
  }

  int64_t classifier_rows() const {
    return spec_.heads.classifier->per_token() ? tokens() : sequences();
  }

  void take_embedding() {
    const Arena::Scope scope(arena_);
    const std::vector<int64_t> columns = embedding_columns();
    buffers_.embedding_input = matrix("embedding_input", sequences(), columns[0]);
    take_dense("embedding_dense_", sequences(), columns, buffers_.embedding_dense);
  }

  void take_classifier() {
    const Arena::Scope scope(arena_);
    const int64_t rows = classifier_rows();
    if (spec_.heads.classifier->dense) {
      buffers_.classifier_dense = matrix("classifier_dense", rows, spec_.hidden_size);
    }
    buffers_.padded_logits =
        matrix("padded_logits", rows, padded(spec_.heads.classifier->num_labels));
  }

  void take_masked_lm() {
    const Arena::Scope scope(arena_);
    const int64_t predictions = capacity_.max_predictions;
    buffers_.masked_lm_dense =
        matrix("masked_lm_dense", vocabulary_rows(), spec_.stem.embedding_size);
    if (predictions > 0) {
      buffers_.prediction_input = matrix("prediction_input", predictions, spec_.hidden_size);
      buffers_.padded_predictions =
          matrix("padded_predictions", predictions, padded(spec_.stem.vocab_size));
    }
    if (spec_.heads.masked_lm->sparse) {
      const size_t bytes = ops_.sparse_pool_workspace(tokens(), spec_.stem.embedding_size,
                                                      padded(spec_.stem.vocab_size),
                                                      spec_.heads.masked_lm->sparse_sum, dtype_);
      if (bytes > 0) buffers_.sparse_workspace = arena_.take("sparse_workspace", bytes);
    }
  }

  const Spec& spec_;
  const Capacity& capacity_;
  const DType dtype_;
  const Ops& ops_;
  Arena& arena_;
  EncoderBuffers& buffers_;
  size_t workspace_ = 0;
};

}  // namespace

void take_head_buffers(const Spec& spec, const Capacity& capacity, DType dtype, const Ops& ops,
                       Arena& arena, EncoderBuffers& buffers) {
  HeadBuffers(spec, capacity, dtype, ops, arena, buffers).take();
}

}  // namespace packhorse
