#include "model/spec/json_fields.h"

#include <algorithm>
#include <cmath>

#include "packhorse/error.h"

namespace packhorse {
namespace {

bool is_positive_number(const Json& value) {
  return value.is_number() && value.number<float>() > 0 && std::isfinite(value.number<float>());
}

bool is_integer(const Json& value, int64_t smallest, int64_t largest) {
  return value.is_integer() && value.number<double>() >= static_cast<double>(smallest) &&
         value.number<double>() <= static_cast<double>(largest);
}

}  // namespace

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) fail("", object, "an object");
}

const Json& Fields::get(const char* name) {
  const Json* const found = object_.find(name);
  if (found == nullptr) {
    throw InvalidArgument(concat("spec: field '", path_, name, "' is missing"));
  }
  read_.insert(name);
  return *found;
}

int64_t Fields::integer(const char* name, int64_t smallest, int64_t largest) {
  const Json& value = get(name);
  if (!is_integer(value, smallest, largest)) {
    fail(name, value, concat("an integer from ", smallest, " to ", largest));
  }
  return value.number<int64_t>();
}

int64_t Fields::integer(const char* name, int64_t smallest, int64_t largest, int64_t otherwise) {
  return has(name) ? integer(name, smallest, largest) : otherwise;
}

float Fields::number(const char* name, float otherwise) {
  if (!has(name)) return otherwise;
  const Json& value = get(name);
  if (!value.is_number() || !std::isfinite(value.number<float>())) fail(name, value, "a number");
  return value.number<float>();
}

float Fields::positive_number(const char* name) {
  const Json& value = get(name);
  if (!is_positive_number(value)) fail(name, value, "a positive number");
  return value.number<float>();
}

float Fields::positive_number(const char* name, float otherwise) {
  return has(name) ? positive_number(name) : otherwise;
}

std::vector<float> Fields::positive_numbers(const char* name, int64_t count) {
  const Json& value = get(name);
  if (!value.is_array() || static_cast<int64_t>(value.array().size()) != count ||
      !std::ranges::all_of(value.array(), is_positive_number)) {
    fail(name, value, concat("a list of ", count, " positive numbers"));
  }
  std::vector<float> result;
  for (const Json& item : value.array()) result.push_back(item.number<float>());
  return result;
}

bool Fields::boolean(const char* name) {
  const Json& value = get(name);
  if (!value.is_boolean()) fail(name, value, "true or false");
  return value.boolean();
}

bool Fields::boolean(const char* name, bool otherwise) {
  return has(name) ? boolean(name) : otherwise;
}

std::vector<int32_t> Fields::indices(const char* name, int64_t largest) {
  const Json& value = get(name);
  const std::string expected = concat("a list of integers from 0 to ", largest);
  if (!value.is_array()) fail(name, value, expected);
  std::vector<int32_t> result;
  for (const Json& item : value.array()) {
    if (!is_integer(item, 0, largest)) fail(name, item, expected);
    result.push_back(item.number<int32_t>());
  }
  return result;
}

size_t Fields::index_of(const char* name, const std::vector<std::string>& choices) {
  const Json& value = get(name);
  const auto found = std::ranges::find_if(choices, [&](const std::string& choice) {
    return value.is_string() && value.text() == choice;
  });
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  std::string known;
  for (const std::string& choice : choices) {
    known += concat(known.empty() ? "one of \"" : ", \"", choice, "\"");
  }
  fail(name, value, known.empty() ? "none" : known);
}

std::vector<std::string> Fields::names() const {
  std::vector<std::string> result;
  for (const Json::Member& member : object_.object()) result.push_back(member.name);
  return result;
}

int64_t Fields::count_texts(const char* name, int64_t most) {
  const Json& value = get(name);
  const bool texts = value.is_array() && std::ranges::all_of(value.array(), &Json::is_string);
  const int64_t count = texts ? static_cast<int64_t>(value.array().size()) : 0;
  if (count < 1 || count > most) fail(name, value, concat("a list of 1 to ", most, " texts"));
  return count;
}

std::vector<Fields> Fields::objects(const char* name) {
  const Json& value = get(name);
  if (!value.is_array()) fail(name, value, "a list of objects");
  std::vector<Fields> result;
  for (const Json& item : value.array()) {
    result.emplace_back(item, concat(path_, name, "[", result.size(), "]."));
  }
  return result;
}

void Fields::done() const {
  for (const Json::Member& member : object_.object()) {
    if (!read_.contains(member.name)) {
      throw InvalidArgument(
          concat("spec: field '", path_, member.name, "' is not known to this runtime"));
    }
  }
}

void Fields::fail(const char* name, const Json& found, const std::string& expected) const {
  throw InvalidArgument(
      concat("spec: '", path_, name, "' is ", found.dump(), ", expected ", expected));
}

}  // namespace packhorse
