// Tensors of Python objects as a source of weights.
#pragma once

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packhorse/weight_source.h"

namespace packhorse {

/// Tensors in memory, and others that Python makes when they are asked for, one alive at a time.
/// Only these take the interpreter lock.
class MadeTensors : public WeightSource {
 public:
  /// Sets `view`. It is valid until the next call. Returns false where making it has failed, with
  /// Python's exception set.
  using Make = bool (*)(void* maker, const std::string& name, TensorView& view);

  /// `names`: those that `make` knows. All other tensors are those of `ready`.
  MadeTensors(std::unique_ptr<WeightSource> ready, void* maker, Make make,
              const std::vector<std::string>& names)
      : ready_(std::move(ready)), maker_(maker), make_(make), names_(names.begin(), names.end()) {}

  TensorView find(const std::string& name) const override {
    if (!names_.contains(name)) return ready_->find(name);
    TensorView view;
    // Cython raises the exception of Python in place of this one.
    if (!make_(maker_, name, view)) throw std::runtime_error("a tensor could not be made");
    return view;
  }

  bool lasts(const std::string& name) const override { return !names_.contains(name); }

  const TensorBlocks* find_blocks(const std::string& name) const override {
    return ready_->find_blocks(name);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names = ready_->names();
    names.insert(names.end(), names_.begin(), names_.end());
    return names;
  }

  void release(const void* data, size_t bytes) const override { ready_->release(data, bytes); }

 private:
  std::unique_ptr<WeightSource> ready_;
  void* maker_;
  Make make_;
  std::set<std::string> names_;
};

}  // namespace packhorse
