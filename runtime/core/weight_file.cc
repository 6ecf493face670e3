#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/format.h"
#include "core/mapped_file.h"
#include "core/safetensors_header.h"
#include "packhorse/error.h"
#include "packhorse/weight_source.h"

namespace packhorse {
namespace {

std::optional<DType> dtype_of(const std::string& name) {
  static const std::unordered_map<std::string, DType> kKnown = {
      {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16},
      {"I32", DType::kInt32},   {"I64", DType::kInt64},   {"I8", DType::kInt8},
      {"U8", DType::kUInt8},    {"BOOL", DType::kBool},   {"F8_E4M3", DType::kFloat8},
  };
  const auto found = kKnown.find(name);
  return found == kKnown.end() ? std::nullopt : std::optional(found->second);
}

class SafetensorsSource : public WeightSource {
 public:
  explicit SafetensorsSource(const std::vector<std::string>& paths) : paths_(paths) {
    for (size_t file = 0; file < paths.size(); ++file) {
      files_.push_back(std::make_unique<MappedFile>(paths[file]));
      const auto entries = parse_safetensors_header(files_[file]->bytes(), paths[file]);
      files_[file]->check();
      for (const SafetensorsEntry& entry : entries) {
        const auto [other, added] = tensors_.try_emplace(entry.name, Tensor{entry, file});
        if (!added) {
          throw InvalidArgument(concat(paths[file], ": tensor ", quote(entry.name), " is also in ",
                                       paths[other->second.file]));
        }
      }
    }
  }

  TensorView find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {};
    const auto& [entry, file] = found->second;
    const auto dtype = dtype_of(entry.dtype);
    if (!dtype || entry.shape.size() > TensorView::kMaxRank) {
      throw InvalidArgument(concat(paths_[file], ": tensor ", quote(name), " has dtype ",
                                   entry.dtype, " and ", entry.shape.size(),
                                   " dimensions; supported are F32, F16, BF16, I32, I64, I8, U8, "
                                   "BOOL, F8_E4M3 and at most ",
                                   TensorView::kMaxRank, " dimensions"));
    }
    // The pages are mapped read only, but TensorView has no const form.
    void* data = const_cast<char*>(files_[file]->bytes().data()) + entry.begin;
    TensorView view(data, *dtype, 1);
    if (entry.shape.empty()) return view;  // a scalar: one element
    view.rank = static_cast<int>(entry.shape.size());
    std::copy(entry.shape.begin(), entry.shape.end(), view.shape);
    view.row_stride = view.columns();
    return view;
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }

  void release(const void* data, size_t bytes) const override {
    for (const auto& file : files_) {
      file->check();
      file->release(data, bytes);
    }
  }

  std::string identity() const override {
    std::string identity;
    for (const auto& file : files_) identity += file->identity() + '\n';
    return identity;
  }

 private:
  struct Tensor {
    SafetensorsEntry entry;
    size_t file;
  };

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace

std::unique_ptr<WeightSource> open_safetensors(const std::vector<std::string>& paths) {
  return std::make_unique<SafetensorsSource>(paths);
}

}  // namespace packhorse
