// Sources of weights: safetensors files, or tensors that the caller holds in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "packhorse/export.h"
#include "packhorse/types.h"

namespace packhorse {

/// Kinds of blocks in which GGUF files hold neighbouring values of a row, named as in ggml.
enum class BlockKind : uint8_t { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2K, kQ3K, kQ4K, kQ5K, kQ6K };

/// Parses "Q4_0", "Q6_K" and so on. Throws InvalidArgument for an unknown name.
PACKHORSE_API BlockKind parse_block_kind(std::string_view name);

/// A tensor that is quantised in blocks. It is read as its values, float32 [shape...], or as a
/// matrix of groups (WeightGroups) where the spec says that it stays quantised.
struct PACKHORSE_API TensorBlocks {
  const uint8_t* data = nullptr;  // rows of whole blocks, one after the other
  BlockKind kind = BlockKind::kQ8_0;
  int rank = 0;  // 2 to TensorView::kMaxRank
  int64_t shape[TensorView::kMaxRank] = {};
  /// Row i of the tensor, whose dimensions but the last are counted as one, is row `row_order[i]`
  /// of the data. Empty: row i.
  std::vector<int32_t> row_order = {};
};

/// Memory of the caller that maps a whole file, read only. `path` is for messages.
struct FileMapping {
  void* data = nullptr;
  size_t bytes = 0;
  std::string path;
};

/// A read-only set of named tensors in host memory.
class PACKHORSE_API WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Returns a view of the tensor, or an empty view if there is none of that name. The data may be
  /// unaligned for its dtype. The view is valid as long as the source, or until the next call if
  /// the tensor does not last.
  virtual TensorView find(const std::string& name) const = 0;
  /// True unless a tensor is made each time that it is asked for.
  virtual bool lasts(const std::string& name) const;
  /// Returns a tensor that is quantised in blocks, or null if there is none of that name. `find`
  /// does not find it.
  virtual const TensorBlocks* find_blocks(const std::string& name) const;
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

/// Makes a source of tensors that the caller must keep alive. Those that lie in `mappings` are read
/// as those of `open_safetensors` are when somebody truncates the file.
PACKHORSE_API std::unique_ptr<WeightSource> borrow_tensors(
    std::map<std::string, TensorView> tensors, std::map<std::string, TensorBlocks> blocks = {},
    const std::vector<FileMapping>& mappings = {});

/// Makes a source of the same tensors under other names: names[new name] = name in `source`.
/// Tensors that `names` does not mention are hidden.
PACKHORSE_API std::unique_ptr<WeightSource> rename_tensors(
    std::unique_ptr<WeightSource> source, std::map<std::string, std::string> names);

}  // namespace packhorse
