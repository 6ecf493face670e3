// The tables of relative positions: those of buckets, and those of disentangled attention, which
// are keys and queries of each layer.
#pragma once

#include <memory>
#include <string>

#include "model/loading/layer_packer.h"
#include "ops/args/attention.h"

namespace packhorse {

/// The table `name` of a bucketed term, or of one of grids. Also its numbers by distance, where the
/// stack is causal.
BucketBias build_bucket_bias(const StackSpec& spec, const std::string& name, LayerPacker& packer);

/// The stack's only table of relative positions, which every layer projects when it is loaded. The
/// memory of the table itself is freed after loading.
class RelativePositions {
 public:
  /// The arguments must outlive this object.
  RelativePositions(const StackSpec& spec, LayerPacker& packer);

  /// Returns the table after the dense layer `part`, [num_relative, H d], in memory that the plan
  /// calls `name`.
  TensorView project(const std::string& name, const Part& part);

 private:
  void normalize();

  const StackSpec& spec_;
  LayerPacker& packer_;
  std::unique_ptr<DeviceMemory> memory_;
  TensorView table_;  // [num_relative, E]; empty without a reader
};

}  // namespace packhorse
