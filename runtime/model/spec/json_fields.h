// Typed access to the JSON of a spec. Errors name the field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/json.h"

namespace packhorse {

/// One JSON object of the spec. It remembers which fields were read, and `done` throws
/// InvalidArgument if any field was not. Those that take `otherwise` give it where the field is
/// missing; all others throw then, and all throw where the field is not what they say.
class Fields {
 public:
  Fields(const Json& object, std::string path);

  bool has(const char* name) const { return object_.find(name) != nullptr; }
  const Json& get(const char* name);

  int64_t integer(const char* name, int64_t smallest, int64_t largest);
  int64_t integer(const char* name, int64_t smallest, int64_t largest, int64_t otherwise);
  float number(const char* name, float otherwise);
  float positive_number(const char* name);
  float positive_number(const char* name, float otherwise);
  /// A list of exactly `count` positive numbers.
  std::vector<float> positive_numbers(const char* name, int64_t count);
  bool boolean(const char* name);
  bool boolean(const char* name, bool otherwise);
  /// A list of integers, each from 0 to `largest`.
  std::vector<int32_t> indices(const char* name, int64_t largest);
  /// The index in `choices` of a text that is one of them.
  size_t index_of(const char* name, const std::vector<std::string>& choices);
  /// The length of a list of strings, which must be from 1 to `most`.
  int64_t count_texts(const char* name, int64_t most);

  template <class T>
  T choice(const char* name, std::initializer_list<std::pair<const char*, T>> choices) {
    return choose(name, get(name), choices);
  }
  /// One choice, or a list of 1 to `most` of them.
  template <class T>
  std::vector<T> choices(const char* name, size_t most,
                         std::initializer_list<std::pair<const char*, T>> choices) {
    const Json& value = get(name);
    if (!value.is_array()) return {choose(name, value, choices)};
    if (value.array().empty() || value.array().size() > most) {
      fail(name, value, concat("a list of 1 to ", most));
    }
    std::vector<T> result;
    for (const Json& item : value.array()) result.push_back(choose(name, item, choices));
    return result;
  }

  /// A field's name with those of the objects that it is in, as errors say it.
  std::string path(const char* name) const { return path_ + name; }
  /// The names of all fields, in ascending order.
  std::vector<std::string> names() const;
  Fields object(const char* name) { return Fields(get(name), path_ + name + "."); }
  std::vector<Fields> objects(const char* name);
  void ignore(const char* name) { read_.insert(name); }

  void done() const;
  [[noreturn]] void fail(const char* name, const Json& found, const std::string& expected) const;

 private:
  template <class T>
  T choose(const char* name, const Json& value,
           std::initializer_list<std::pair<const char*, T>> choices) const {
    std::string known;
    for (const auto& [text, result] : choices) {
      if (value.is_string() && value.text() == text) return result;
      known += concat(known.empty() ? "" : ", ", "\"", text, "\"");
    }
    fail(name, value, concat("one of ", known));
  }
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace packhorse
