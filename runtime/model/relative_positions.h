// The tables of disentangled attention: relative positions as keys and queries of each layer.
#pragma once

#include <memory>
#include <string>

#include "model/layer_packer.h"

namespace packhorse {

/// The model's one table of relative positions, projected by every layer when it is loaded. The
/// table itself is memory of the load alone.
class RelativePositions {
 public:
  /// The arguments outlive the object.
  RelativePositions(const Spec& spec, LayerPacker& packer);

  /// [num_relative, H d]: the table through the dense layer `part`, in memory called `name`.
  TensorView project(const std::string& name, const Part& part);

 private:
  void normalize();

  const Spec& spec_;
  LayerPacker& packer_;
  std::unique_ptr<DeviceMemory> memory_;
  TensorView table_;  // [num_relative, E]; empty where nothing is read
};

}  // namespace packhorse
