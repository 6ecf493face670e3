// Parsed JSON that is taken apart without a need for memory.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace packhorse {

/// Holds JSON of little depth. The library's destructor allocates a list of what is left to
/// destroy, and a destructor that fails ends the process; so the tree is emptied here, from its
/// leaves on, and the destructor finds nothing.
class JsonTree {
 public:
  explicit JsonTree(nlohmann::json json) : json_(std::move(json)) {}
  ~JsonTree() { clear(json_); }
  JsonTree(const JsonTree&) = delete;
  JsonTree& operator=(const JsonTree&) = delete;

  const nlohmann::json& operator*() const { return json_; }

 private:
  static void clear(nlohmann::json& json) {
    if (!json.is_structured()) return;
    for (nlohmann::json& child : json) clear(child);
    json.clear();
  }

  nlohmann::json json_;
};

}  // namespace packhorse
