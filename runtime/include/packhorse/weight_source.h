// Where weights come from: safetensors files, or tensors somebody already holds in memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// Named host tensors, read only.
class PACKHORSE_API WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// A view of the tensor, or an empty view where there is none of that name. The data may be
  /// unaligned for its dtype. Valid until the source dies.
  virtual TensorView find(const std::string& name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Tells that [data, data + bytes) has been read and will not be needed soon: a mapped file gives
  /// its pages back, so that loading does not hold the weights twice.
  virtual void release(const void* data, size_t bytes) const;
  /// Text that is equal for sources that hold the same tensors (for files: inode, size and times of
  /// change), so that sessions can share loaded weights. Empty: never shared.
  virtual std::string identity() const;
};

/// Opens one or several safetensors files (shards). Headers are validated whole before any tensor
/// is served. The files stay mapped: deleting them is harmless, truncating them is not (bus error).
/// Throws InvalidArgument (not a valid file: says why) or RuntimeError (cannot be read).
PACKHORSE_API std::unique_ptr<WeightSource> open_safetensors(const std::vector<std::string>& paths);

/// Tensors that the caller keeps alive.
PACKHORSE_API std::unique_ptr<WeightSource> borrow_tensors(
    std::map<std::string, TensorView> tensors);

/// The same tensors under other names: `names[ours] = theirs`. Names outside the map are hidden.
PACKHORSE_API std::unique_ptr<WeightSource> rename_tensors(
    std::unique_ptr<WeightSource> source, std::map<std::string, std::string> names);

}  // namespace packhorse
