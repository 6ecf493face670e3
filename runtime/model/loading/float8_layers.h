// Models whose dense layers are e4m3 (DType::kFloat8): which of the layers are, and the scales that
// follow from weights.
//
// Results of norms are quantised row by row when a batch runs. What attention and activations give
// has one scale for each layer instead, which is a bound and costs nothing at run time. A
// normalised row z of E elements has |z|_2 <= sqrt(E), so a dense layer W x + b of x = gamma z +
// beta gives in feature n at most
//
//   |W_n x + b_n| <= sqrt(E) |W_n gamma|_2 + |W_n beta + b_n|        (Cauchy and Schwarz)
//
// The output of attention is a mean of values, whatever the scores, so the bound of the values
// holds for it; and all activations have |f(x)| <= max(|x|, 1). Since a number of e4m3 is as exact
// at a thousandth of the largest as at the largest, a bound that is several times too large costs
// no digits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/loading/layer_packer.h"
#include "model/spec/spec.h"

namespace packhorse {

/// Returns for each row n of `weight`, a matrix [rows, columns], the most that |weight_n x +
/// bias_n| can be for rows x of `normed`, whose columns from its size on are zeros. `bias` may be
/// null.
std::vector<float> largest_outputs(const float* weight, int64_t rows, int64_t columns,
                                   const float* bias, const NormedRows& normed);

/// The scale of a tensor in e4m3 whose magnitudes are at most `bound`, apart from what the rounding
/// of inputs and weights to e4m3 adds.
float float8_scale(float bound);

class Float8Layers {
 public:
  /// Throws RuntimeError if the model is asked for in float8 and cannot be that.
  Float8Layers(const StackSpec& spec, const LayerPacker& packer);

  /// The format of attention's output projections, which is not e4m3 if attention cannot write
  /// that. All other layers have Precision::layers.
  LinearFormat output() const {
    return output_ ? packer_.precision().layers : packer_.precision().rest;
  }

  /// The scale of what attention gives, from the rows of values in the weight of queries, keys and
  /// values of weight set `index`, [rows, columns], and their biases.
  float attention_scale(int64_t index, const float* values, int64_t rows, int64_t columns,
                        const float* bias) const;
  /// The scale between the layers of the feed-forward block of weight set `index`, from the weight
  /// of the first, as FeedForwardArgs has it.
  float inner_scale(int64_t index, const float* up, int64_t rows, int64_t columns,
                    const float* bias) const;

 private:
  // The norm whose result enters the attention of layer `position`, or nothing if what enters it is
  // no norm's result.
  std::optional<std::string> norm_before(size_t position) const;
  std::vector<float> largest(const std::string& norm, const float* weight, int64_t rows,
                             int64_t columns, const float* bias) const;

  const StackSpec& spec_;
  const LayerPacker& packer_;
  bool output_ = true;  // whether output projections have Precision::layers
};

}  // namespace packhorse
