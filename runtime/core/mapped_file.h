// A file that is mapped into memory, read only.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "core/fault_guard.h"

namespace packhorse {

/// Maps a whole regular file. Deleting the file does not affect the mapping. If somebody truncates
/// the file, the lost part reads as zeros, and `check` throws.
class MappedFile {
 public:
  /// Throws RuntimeError, whose message names the path and the system's reason.
  explicit MappedFile(const std::string& path);
  /// Covers a mapping of the caller's, who unmaps it later. `path` is for messages.
  MappedFile(const std::string& path, void* data, size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const char> bytes() const { return {data_, size_}; }
  /// Text made of device, inode, size and times of last change. It is equal as long as the file is
  /// unchanged.
  const std::string& identity() const { return identity_; }
  /// Throws RuntimeError if something was read that the file no longer had.
  void check() const;
  /// Releases the memory of all whole pages inside [data, data + bytes), if that range lies in this
  /// file. Reading there later reads the file again.
  void release(const void* data, size_t bytes) const;

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  bool owned_ = true;  // whether the mapping ends with this object
  std::string path_;
  std::string identity_;
  std::optional<FaultGuard> guard_;
};

}  // namespace packhorse
