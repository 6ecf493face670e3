#include "model/stem/audio.h"

#include <algorithm>

namespace packhorse {
namespace {

LinearArgs convolution(const LinearWeight& weight, const TensorView& x, const AudioBuffers& buffers,
                       const TensorView& out) {
  LinearArgs args;
  args.x = x;
  args.weight = weight;
  args.out = out;
  args.workspace = buffers.workspace;
  return args;
}

}  // namespace

AudioWeights build_audio(const StackSpec& stack, const std::string& name, LayerPacker& packer) {
  const int64_t hidden = stack.hidden_size;
  AudioWeights weights;
  weights.first =
      packer.convolution(name + "convolution.0", hidden, stack.stem.audio.features, kAudioWidth);
  weights.second = packer.convolution(name + "convolution.1", hidden, hidden, kAudioWidth);
  weights.positions = packer.table(name + "position", stack.stem.num_positions, hidden);
  return weights;
}

AudioBuffers take_audio_buffers(const AudioWeights& weights, int64_t features, DType dtype,
                                const Capacity& capacity, const Ops& ops, Arena& arena) {
  const int64_t frames = kAudioStride * capacity.max_tokens;
  const int64_t stored = weights.first.in_features / kAudioWidth;
  AudioBuffers buffers;
  if (dtype != DType::kFloat32 || stored != features) {
    buffers.rounded = arena.take_matrix("audio", frames, stored, dtype);
  }
  buffers.unfolded = arena.take_matrix("unfolded_audio", frames, weights.first.in_features, dtype);
  buffers.frames = arena.take_matrix("frames", frames, weights.first.out_features, dtype);
  buffers.joined =
      arena.take_matrix("joined_frames", capacity.max_tokens, weights.second.in_features, dtype);
  const LinearArgs first = convolution(weights.first, buffers.unfolded, buffers, buffers.frames);
  const LinearArgs second = convolution(weights.second, buffers.joined, buffers,
                                        buffers.frames.first_rows(capacity.max_tokens));
  buffers.workspace = arena.take(
      "embedding_workspace", std::max(ops.linear_workspace(first), ops.linear_workspace(second)));
  return buffers;
}

void embed_audio(const AudioSpec& spec, const AudioWeights& weights, const NormWeight& norm,
                 const AudioBuffers& buffers, const TokenBatch& tokens, const TensorView& hidden,
                 Ops& ops) {
  const int64_t rows = tokens.batch.num_tokens;
  const int64_t count = kAudioStride * rows;
  BatchView frames = tokens.batch;
  frames.num_tokens = count;
  frames.max_seqlen *= kAudioStride;
  frames.cu_seqlens = tokens.frame_cu_seqlens;
  frames.min_seqlen = 0;
  TensorView x = tokens.features;
  if (buffers.rounded) {
    x = buffers.rounded.first_rows(count);
    ops.cast({.x = tokens.features, .out = x, .padding = x.columns() - spec.features});
  }
  const auto width = static_cast<int32_t>(kAudioWidth);
  const TensorView unfolded = buffers.unfolded.first_rows(count);
  ops.unfold({.x = x, .width = width, .batch = frames, .out = unfolded});
  const TensorView convolved = buffers.frames.first_rows(count);
  LinearArgs first = convolution(weights.first, unfolded, buffers, convolved);
  first.activation = spec.activation;
  ops.linear(first);
  const TensorView joined = buffers.joined.first_rows(rows);
  ops.unfold({.x = convolved,
              .width = width,
              .stride = static_cast<int32_t>(kAudioStride),
              .batch = tokens.batch,
              .out = joined});
  const TensorView out = hidden.first_rows(rows);
  LinearArgs second = convolution(weights.second, joined, buffers, out);
  second.activation = spec.activation;
  ops.linear(second);
  EmbedArgs positions;
  positions.word = out;
  positions.position = weights.positions;
  positions.norm = norm;
  positions.batch = tokens.batch;
  positions.out = out;
  ops.embed(positions);
}

}  // namespace packhorse
