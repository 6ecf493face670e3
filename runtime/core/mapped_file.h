// A file in memory, read only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace packhorse {

/// Maps a whole regular file. The mapping outlives deletion of the file; if another process
/// truncates the file meanwhile, reading the lost part is a bus error (as with every mapped file).
class MappedFile {
 public:
  /// Throws RuntimeError naming the path and the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const char> bytes() const { return {data_, size_}; }
  /// Device, inode, size and times of last change: equal for the same content of the same file.
  const std::string& identity() const { return identity_; }
  /// Gives back the memory of the whole pages inside [data, data + bytes), where it lies in this
  /// file; reading there later reads the file again.
  void release(const void* data, size_t bytes) const;

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  std::string identity_;
};

}  // namespace packhorse
