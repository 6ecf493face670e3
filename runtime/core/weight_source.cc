#include "packhorse/weight_source.h"

#include <utility>

#include "core/format.h"

namespace packhorse {
namespace {

class BorrowedTensors : public WeightSource {
 public:
  explicit BorrowedTensors(std::map<std::string, TensorView> tensors)
      : tensors_(std::move(tensors)) {}

  TensorView find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? TensorView() : found->second;
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }

 private:
  std::map<std::string, TensorView> tensors_;
};

class RenamedTensors : public WeightSource {
 public:
  RenamedTensors(std::unique_ptr<WeightSource> source, std::map<std::string, std::string> names)
      : source_(std::move(source)), names_(std::move(names)) {}

  TensorView find(const std::string& name) const override {
    const auto found = names_.find(name);
    return found == names_.end() ? TensorView() : source_->find(found->second);
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

void WeightSource::release(const void*, size_t) const {}

std::string WeightSource::identity() const { return {}; }

std::unique_ptr<WeightSource> borrow_tensors(std::map<std::string, TensorView> tensors) {
  return std::make_unique<BorrowedTensors>(std::move(tensors));
}

std::unique_ptr<WeightSource> rename_tensors(std::unique_ptr<WeightSource> source,
                                             std::map<std::string, std::string> names) {
  return std::make_unique<RenamedTensors>(std::move(source), std::move(names));
}

}  // namespace packhorse
