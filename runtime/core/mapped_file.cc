#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "core/format.h"
#include "core/math.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw RuntimeError(concat(path, ": cannot ", what, ": ", std::generic_category().message(errno)));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Opens with O_NONBLOCK: a pipe would block here otherwise, before it can be refused.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(path, "open");
  struct stat status;
  if (fstat(file.fd, &status) != 0) fail(path, "read its size");
  if (!S_ISREG(status.st_mode)) throw RuntimeError(concat(path, ": not a regular file"));
  size_ = static_cast<size_t>(status.st_size);
  identity_ =
      concat(status.st_dev, ':', status.st_ino, ':', size_, ':', status.st_mtim.tv_sec, '.',
             status.st_mtim.tv_nsec, ':', status.st_ctim.tv_sec, '.', status.st_ctim.tv_nsec);
  if (size_ == 0) return;  // the system refuses to map nothing
  void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapping == MAP_FAILED) fail(path, "map");
  data_ = static_cast<char*>(mapping);
  guard_.emplace(mapping, size_);
}

MappedFile::MappedFile(const std::string& path, void* data, size_t bytes)
    : data_(static_cast<char*>(data)), size_(bytes), owned_(false), path_(path) {
  guard_.emplace(data, bytes);
}

MappedFile::~MappedFile() {
  guard_.reset();
  if (owned_ && data_ != nullptr) munmap(data_, size_);
}

void MappedFile::check() const {
  if (guard_ && guard_->lost()) {
    throw RuntimeError(concat(path_, ": the file was truncated while it was read; it had ", size_,
                              " bytes when it was opened"));
  }
}

void MappedFile::release(const void* data, size_t bytes) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(data_);
  const auto wanted = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = round_up(std::max(wanted, first), page);
  const uintptr_t end = std::min(wanted + bytes, first + size_) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace packhorse
