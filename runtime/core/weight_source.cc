#include "packhorse/weight_source.h"

#include <utility>

#include "core/format.h"
#include "core/mapped_file.h"

namespace packhorse {
namespace {

class BorrowedTensors : public WeightSource {
 public:
  BorrowedTensors(std::map<std::string, TensorView> tensors,
                  std::map<std::string, TensorBlocks> blocks,
                  const std::vector<FileMapping>& mappings)
      : tensors_(std::move(tensors)), blocks_(std::move(blocks)) {
    for (const auto& [data, bytes, path] : mappings) {
      files_.push_back(std::make_unique<MappedFile>(path, data, bytes));
    }
  }

  TensorView find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? TensorView() : found->second;
  }

  const TensorBlocks* find_blocks(const std::string& name) const override {
    const auto found = blocks_.find(name);
    return found == blocks_.end() ? nullptr : &found->second;
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    for (const auto& [name, tensor] : blocks_) names.push_back(name);
    return names;
  }

  void release(const void* data, size_t bytes) const override {
    for (const auto& file : files_) {
      file->check();
      file->release(data, bytes);
    }
  }

 private:
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, TensorBlocks> blocks_;
  std::vector<std::unique_ptr<MappedFile>> files_;
};

class RenamedTensors : public WeightSource {
 public:
  RenamedTensors(std::unique_ptr<WeightSource> source, std::map<std::string, std::string> names)
      : source_(std::move(source)), names_(std::move(names)) {}

  TensorView find(const std::string& name) const override {
    const auto found = names_.find(name);
    return found == names_.end() ? TensorView() : source_->find(found->second);
  }

  bool lasts(const std::string& name) const override {
    const auto found = names_.find(name);
    return found == names_.end() || source_->lasts(found->second);
  }

  const TensorBlocks* find_blocks(const std::string& name) const override {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : source_->find_blocks(found->second);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [ours, theirs] : names_) names.push_back(ours);
    return names;
  }

  void release(const void* data, size_t bytes) const override { source_->release(data, bytes); }

  std::string identity() const override {
    std::string identity = source_->identity();
    if (identity.empty()) return identity;
    for (const auto& [ours, theirs] : names_) identity += concat(ours, '\n', theirs, '\n');
    return identity;
  }

 private:
  std::unique_ptr<WeightSource> source_;
  std::map<std::string, std::string> names_;
};

}  // namespace

bool WeightSource::lasts(const std::string&) const { return true; }

const TensorBlocks* WeightSource::find_blocks(const std::string&) const { return nullptr; }

void WeightSource::release(const void*, size_t) const {}

std::string WeightSource::identity() const { return {}; }

std::unique_ptr<WeightSource> borrow_tensors(std::map<std::string, TensorView> tensors,
                                             std::map<std::string, TensorBlocks> blocks,
                                             const std::vector<FileMapping>& mappings) {
  return std::make_unique<BorrowedTensors>(std::move(tensors), std::move(blocks), mappings);
}

std::unique_ptr<WeightSource> rename_tensors(std::unique_ptr<WeightSource> source,
                                             std::map<std::string, std::string> names) {
  return std::make_unique<RenamedTensors>(std::move(source), std::move(names));
}

}  // namespace packhorse
