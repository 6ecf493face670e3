// The tables of disentangled attention: the relative positions as keys and as queries of each
// layer.
#pragma once

#include <memory>
#include <string>

#include "model/loading/layer_packer.h"

namespace packhorse {

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
