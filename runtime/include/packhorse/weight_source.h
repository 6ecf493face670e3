// Sources of weights: safetensors files, or tensors that the caller holds in memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// A read-only set of named tensors in host memory.
class PACKHORSE_API WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Returns a view of the tensor, or an empty view if there is none of that name. The data may be
  /// unaligned for its dtype. The view is valid as long as the source.
  virtual TensorView find(const std::string& name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Tells the source that [data, data + bytes) has been read and will not be needed soon. A mapped
  /// file then releases its pages, so that loading does not hold the weights twice. Throws
  /// RuntimeError if a file was truncated meanwhile: what was read is then not what it held.
  virtual void release(const void* data, size_t bytes) const;
  /// Text that is equal for sources that hold the same tensors (for files: inode, size and times of
  /// last change), so that sessions can share loaded weights. If it is empty, weights from this
  /// source are never shared.
  virtual std::string identity() const;
};

/// Opens one or several safetensors files (shards). Headers are validated completely before any
/// tensor is returned. The files stay mapped: deleting them is harmless. What is read of a file
/// after somebody has truncated it is zeros, and the next `release` throws; Session::load always
/// calls it. Throws InvalidArgument if a file is not valid, saying why, and RuntimeError if it
/// cannot be read.
PACKHORSE_API std::unique_ptr<WeightSource> open_safetensors(const std::vector<std::string>& paths);

/// Makes a source of tensors that the caller must keep alive.
PACKHORSE_API std::unique_ptr<WeightSource> borrow_tensors(
    std::map<std::string, TensorView> tensors);

/// Makes a source of the same tensors under other names: names[new name] = name in `source`.
/// Tensors that `names` does not mention are hidden.
PACKHORSE_API std::unique_ptr<WeightSource> rename_tensors(
    std::unique_ptr<WeightSource> source, std::map<std::string, std::string> names);

}  // namespace packhorse
