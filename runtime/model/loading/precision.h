// The formats of a model's dense layers.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "ops/linear_packer.h"

namespace packhorse {

/// The layers of the stack may be quantised: they hold nearly all of the weights. Embeddings, norms
/// and heads affect results most and cost little, so they are not, except for one: a model that
/// generates reads the whole matrix of its language model head for every token. What a file has
/// quantised in groups already stays so.
struct Precision {
  LinearFormat layers;   // the dense layers of attention and of feed-forward blocks
  LinearFormat rest;     // the dense layers of stem, convolution and heads: never quantised
  LinearFormat decoder;  // the language model head: that of `layers` in a model that generates
  /// In place of `layers` in the first of two stacks, whose products are large.
  std::optional<LinearFormat> source = {};
  /// Spec::quantized: weights that have formats of their own
  std::map<std::string, WeightGroups> groups = {};

  /// The dtype of activations, tables and outputs.
  DType floats() const { return rest.compute; }
  /// The dtype of the weights that are not quantised: dense layers and, where rows are decoded as
  /// they are read, the table of words.
  DType weights() const { return rest.weight; }
  /// True where dense layers of any stack are float8.
  bool has_float8() const {
    return layers.weight == DType::kFloat8 || (source && source->weight == DType::kFloat8);
  }
  /// The precision of the first of two stacks.
  Precision of_source() const {
    Precision result = *this;
    if (source) result.layers = *source;
    return result;
  }
};

/// The precision of a model that is loaded with `dtype`, perhaps with a language model head. Throws
/// as LinearPacker::format does.
inline Precision precision_of(DType dtype, bool has_lm, const LinearPacker& packer) {
  const LinearFormat format = has_lm ? packer.lm_format(dtype) : packer.format(dtype);
  return {format, format.plain(), format.plain(), {}, {}};
}

}  // namespace packhorse
