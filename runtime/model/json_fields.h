// Typed access to the JSON of a spec. Errors name the field.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

using Json = nlohmann::json;

/// One JSON object of the spec. It remembers which fields were read, and `done` throws
/// InvalidArgument if any field was not.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) fail("", object, "an object");
  }

  bool has(const char* name) const { return object_.contains(name); }

  const Json& get(const char* name) {
    if (!has(name)) throw InvalidArgument(concat("spec: field '", path_, name, "' is missing"));
    read_.insert(name);
    return object_[name];
  }

  int64_t integer(const char* name, int64_t smallest, int64_t largest) {
    const Json& value = get(name);
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(smallest) ||
        value.get<double>() > static_cast<double>(largest)) {
      fail(name, value, concat("an integer from ", smallest, " to ", largest).c_str());
    }
    return value.get<int64_t>();
  }
  int64_t integer(const char* name, int64_t smallest, int64_t largest, int64_t otherwise) {
    return has(name) ? integer(name, smallest, largest) : otherwise;
  }

  float number(const char* name, float otherwise) {
    if (!has(name)) return otherwise;
    const Json& value = get(name);
    if (!value.is_number() || !std::isfinite(value.get<float>())) fail(name, value, "a number");
    return value.get<float>();
  }

  float positive_number(const char* name) {
    const Json& value = get(name);
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<float>())) {
      fail(name, value, "a positive number");
    }
    return value.get<float>();
  }

  float positive_number(const char* name, float otherwise) {
    return has(name) ? positive_number(name) : otherwise;
  }

  /// A list of exactly `count` positive numbers.
  std::vector<float> positive_numbers(const char* name, int64_t count) {
    const Json& value = get(name);
    const auto good = [](const Json& item) {
      return item.is_number() && item.get<double>() > 0 && std::isfinite(item.get<float>());
    };
    if (!value.is_array() || static_cast<int64_t>(value.size()) != count ||
        !std::all_of(value.begin(), value.end(), good)) {
      fail(name, value, concat("a list of ", count, " positive numbers").c_str());
    }
    return value.get<std::vector<float>>();
  }

  bool boolean(const char* name) {
    const Json& value = get(name);
    if (!value.is_boolean()) fail(name, value, "true or false");
    return value.get<bool>();
  }
  bool boolean(const char* name, bool otherwise) { return has(name) ? boolean(name) : otherwise; }

  /// A list of integers, each from 0 to `largest`.
  std::vector<int32_t> indices(const char* name, int64_t largest) {
    const Json& value = get(name);
    const std::string expected = concat("a list of integers from 0 to ", largest);
    if (!value.is_array()) fail(name, value, expected.c_str());
    std::vector<int32_t> result;
    for (const Json& item : value) {
      if (!item.is_number_integer() || item.get<double>() < 0 ||
          item.get<double>() > static_cast<double>(largest)) {
        fail(name, item, expected.c_str());
      }
      result.push_back(item.get<int32_t>());
    }
    return result;
  }

  /// The length of a list of strings, which must be from 1 to `most`.
  int64_t count_texts(const char* name, int64_t most) {
    const Json& value = get(name);
    const bool texts = value.is_array() && std::all_of(value.begin(), value.end(),
                                                       [](auto& item) { return item.is_string(); });
    const auto count = static_cast<int64_t>(value.size());
    if (!texts || count < 1 || count > most) {
      fail(name, value, concat("a list of 1 to ", most, " texts").c_str());
    }
    return count;
  }

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
    if (value.empty() || value.size() > most) {
      fail(name, value, concat("a list of 1 to ", most).c_str());
    }
    std::vector<T> result;
    for (const Json& item : value) result.push_back(choose(name, item, choices));
    return result;
  }

  Fields object(const char* name) { return Fields(get(name), path_ + name + "."); }
  std::vector<Fields> objects(const char* name) {
    const Json& value = get(name);
    if (!value.is_array()) fail(name, value, "a list of objects");
    std::vector<Fields> result;
    for (const Json& item : value) {
      result.emplace_back(item, concat(path_, name, "[", result.size(), "]."));
    }
    return result;
  }
  void ignore(const char* name) { read_.insert(name); }

  void done() const {
    for (const auto& [name, value] : object_.items()) {
      if (!read_.contains(name)) {
        throw InvalidArgument(
            concat("spec: field '", path_, name, "' is not known to this runtime"));
      }
    }
  }

 private:
  template <class T>
  T choose(const char* name, const Json& value,
           std::initializer_list<std::pair<const char*, T>> choices) const {
    std::string known;
    for (const auto& [text, result] : choices) {
      if (value.is_string() && value.get_ref<const std::string&>() == text) return result;
      known += concat(known.empty() ? "" : ", ", "\"", text, "\"");
    }
    fail(name, value, concat("one of ", known).c_str());
  }
  [[noreturn]] void fail(const char* name, const Json& found, const char* expected) const {
    throw InvalidArgument(
        concat("spec: '", path_, name, "' is ", found.dump(), ", expected ", expected));
  }

  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace packhorse
