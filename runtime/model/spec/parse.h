// The parts of a spec, each parsed from the JSON object that has its fields. Format 2 and format 1
// have the same fields in other objects; only the two files of the formats know which.
#pragma once

#include "model/spec/json_fields.h"
#include "model/spec/spec.h"

namespace packhorse {

// Limits that no model comes near, low enough that no product of sizes overflows 64 bits.
inline constexpr int64_t kMaxHidden = int64_t{1} << 20;
inline constexpr int64_t kMaxRows = int64_t{1} << 26;  // rows of a table; tokens of a sequence
inline constexpr int64_t kMaxIntermediate = int64_t{1} << 24;
inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
inline constexpr int64_t kMaxDistance = int64_t{1} << 24;
inline constexpr int64_t kMaxPrefix = int64_t{1} << 12;  // rows before the patches of an image
inline constexpr int64_t kMaxGrid = int64_t{1} << 12;    // cells of a grid in one direction
inline constexpr int64_t kMostExperts = 1024;
inline constexpr int64_t kMostExpertsTogether = int64_t{1} << 17;  // experts of all layers

/// Stacks and max_seqlen, of a document of either format. `fields`: the whole document.
void parse_format1(Fields& fields, Spec& spec);
void parse_format2(Fields& fields, Spec& spec);

Activation parse_activation(Fields& fields);
/// The tables of a stem of tokens, without positions.
void parse_tables(Fields& fields, int64_t hidden_size, StemSpec& stem);
/// Rows that are given beside ids, in a stem of tokens whose tables have been parsed.
void parse_rows(Fields fields, StemSpec& stem);
/// The positions that are added to the embeddings, and the longest sequence, which they limit.
/// `fields` has 'positions', `top` has 'max_seqlen'.
void parse_positions(Fields& fields, Fields& top, StemSpec& stem, int64_t& max_seqlen);
/// A stem of patches, and the longest sequence, which is a field of `top`.
void parse_audio(Fields& fields, Fields& top, StackSpec& stack);
void parse_patches(Fields& fields, Fields& top, StackSpec& stack);
/// Kind, placement, eps, bias and gamma_offset, and whether a norm is the last.
void parse_norm(Fields& fields, StackSpec& stack);
/// num_heads, num_kv_heads and head_dim.
void parse_head_sizes(Fields& fields, int64_t hidden_size, AttentionSpec& attention);
/// qkv_bias, key_bias, output_bias and scale.
void parse_projections(Fields& fields, AttentionSpec& attention);
/// The mask and all that does not depend on other layers.
void parse_attention(Fields& fields, AttentionSpec& attention);
/// The widths of both convolutions of a block whose head sizes are known.
void parse_cca(Fields& fields, CcaSpec& cca);
RopeSpec parse_rope(Fields& fields, int64_t head_dim);
/// `attention`: that of the layers.
ScoreTermSpec parse_score_term(Fields fields, const AttentionSpec& attention);
void parse_feed_forward_biases(Fields& fields, FeedForwardSpec& feed_forward);
ConvolutionSpec parse_convolution(Fields fields, int64_t num_layers);
/// residual_scales of a stack whose norm is known.
void parse_residual_scales(Fields& fields, StackSpec& stack);
void check_moe_placement(const StackSpec& stack);

/// `stack`: that whose hidden state the heads read.
void parse_heads(Fields fields, const StackSpec& stack, HeadsSpec& heads);
void parse_embedding(Fields fields, HeadsSpec& heads);
/// The field 'quantized', where there is one. The layers of `spec` are known.
void parse_quantized(Fields& fields, Spec& spec);

}  // namespace packhorse
