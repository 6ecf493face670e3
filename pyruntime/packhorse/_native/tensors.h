// Tensors of Python objects as a source of weights.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packhorse/weight_source.h"

namespace packhorse {

/// Tensors that are made when they are asked for, one alive at a time.
class MadeTensors : public WeightSource {
 public:
  /// Sets `view`, or leaves it empty where there is no tensor of the name. It is valid until the
  /// next call. Returns false where making it has failed, with Python's exception set.
  using Make = bool (*)(void* maker, const std::string& name, TensorView& view);

  MadeTensors(void* maker, Make make, std::vector<std::string> names)
      : maker_(maker), make_(make), names_(std::move(names)) {}

  TensorView find(const std::string& name) const override {
    TensorView view;
    // Cython raises the exception of Python in place of this one.
    if (!make_(maker_, name, view)) throw std::runtime_error("a tensor could not be made");
    return view;
  }

  std::vector<std::string> names() const override { return names_; }

 private:
  void* maker_;
  Make make_;
  std::vector<std::string> names_;
};

}  // namespace packhorse
