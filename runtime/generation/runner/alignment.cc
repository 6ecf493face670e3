#include "generation/runner/alignment.h"

#include <algorithm>

namespace packhorse {

namespace {

TensorView rows_of(const TensorView& matrix, int64_t first, int64_t count) {
  const auto skipped = static_cast<size_t>(first * matrix.row_stride) * size_of(matrix.dtype);
  return {matrix.as<char>() + skipped, matrix.dtype, count, matrix.columns(), matrix.row_stride};
}

}  // namespace

bool wants_alignment(const Step& step) {
  return std::ranges::any_of(
      step.sequences, [](const SequenceSlice& sequence) { return sequence.alignment.rows > 0; });
}

void AlignedKeys::before_attention(size_t layer, const AttentionArgs& args) {
  int64_t first = 0;
  for (size_t i = 0; i < step_.sequences.size(); ++i) {
    const SequenceSlice& sequence = step_.sequences[i];
    const SliceAlignment& wanted = sequence.alignment;
    for (size_t h = 0; wanted.rows > 0 && h < wanted.heads.size(); ++h) {
      if (static_cast<size_t>(wanted.heads[h].layer) != layer) continue;
      write(args, static_cast<int64_t>(i), first, h);
    }
    first += std::ssize(sequence.ids);
  }
}

void AlignedKeys::write(const AttentionArgs& args, int64_t sequence, int64_t first, size_t head) {
  const SliceAlignment& wanted = step_.sequences[static_cast<size_t>(sequence)].alignment;
  AttentionWeightsArgs weights;
  weights.pages = args.pages;
  weights.pages.num_single = 0;  // a hint for the whole batch
  weights.sequence = sequence;
  weights.num_keys = wanted.source_tokens;
  weights.head = wanted.heads[head].head;
  weights.num_heads = args.num_heads;
  weights.num_kv_heads = args.num_kv_heads;
  weights.head_dim = args.head_dim;
  weights.scale = args.scale;
  const DownloadScope downloads(device_);
  for (int64_t row = 0; row < wanted.rows; row += buffer_.rows()) {
    const int64_t rows = std::min(buffer_.rows(), wanted.rows - row);
    weights.q = rows_of(args.q, first + row, rows);
    weights.out = TensorView(buffer_.data, DType::kFloat32, rows, wanted.source_tokens);
    ops_.attention_weights(weights);
    const int64_t at = static_cast<int64_t>(head) * wanted.row_stride + row;
    device_.download(wanted.out + at * wanted.source_tokens, buffer_.data,
                     static_cast<size_t>(rows * wanted.source_tokens) * sizeof(float));
    device_.synchronize();
  }
}

}  // namespace packhorse
