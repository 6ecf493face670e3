// JSON as a tree of values. Only json.cc knows the library that reads the text: its header takes
// the compiler longer than most files that look at values.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace packhorse {

/// A value. It takes 16 bytes, and is destroyed without a need for memory, as deep as it is.
class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;  // ascending, distinct names

  Json() = default;  // null
  explicit Json(bool value) : value_(value) {}
  explicit Json(int64_t value) : value_(value) {}
  explicit Json(uint64_t value) : value_(value) {}
  explicit Json(double value) : value_(value) {}
  explicit Json(std::string value);
  explicit Json(Array value);
  /// Sorts the members. Of members of one name the last stays.
  explicit Json(Object value);

  bool is_null() const { return holds<std::monostate>(); }
  bool is_boolean() const { return holds<bool>(); }
  bool is_number() const { return is_integer() || holds<double>(); }
  /// Written without a fraction and an exponent.
  bool is_integer() const { return holds<int64_t>() || is_unsigned(); }
  bool is_unsigned() const { return holds<uint64_t>(); }  // an integer from 0 on
  bool is_string() const { return holds<std::unique_ptr<std::string>>(); }
  bool is_array() const { return holds<std::unique_ptr<Array>>(); }
  bool is_object() const { return holds<std::unique_ptr<Object>>(); }

  // Accessors, each for a value of its kind.
  bool boolean() const { return std::get<bool>(value_); }
  /// A number as a T, rounded or cut as the language does it.
  template <class T>
  T number() const {
    if (const auto* integer = std::get_if<int64_t>(&value_)) return static_cast<T>(*integer);
    if (const auto* integer = std::get_if<uint64_t>(&value_)) return static_cast<T>(*integer);
    return static_cast<T>(std::get<double>(value_));
  }
  const std::string& text() const { return *std::get<std::unique_ptr<std::string>>(value_); }
  const Array& array() const { return *std::get<std::unique_ptr<Array>>(value_); }
  Array& array() { return *std::get<std::unique_ptr<Array>>(value_); }
  const Object& object() const { return *std::get<std::unique_ptr<Object>>(value_); }
  Object& object() { return *std::get<std::unique_ptr<Object>>(value_); }

  /// The member of an object, or null if it has no such member.
  const Json* find(std::string_view name) const;

  /// The text of the value, in ASCII.
  std::string dump() const;

 private:
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::unique_ptr<std::string>,
               std::unique_ptr<Array>, std::unique_ptr<Object>>
      value_;
};

struct Json::Member {
  std::string name;
  Json value;
};

/// Why a text was not read.
class JsonError : public std::exception {
 public:
  enum Reason { kSyntax, kDepth, kDuplicate };
  JsonError(Reason reason, std::string what) : reason_(reason), what_(std::move(what)) {}
  Reason reason() const { return reason_; }
  /// kSyntax: where and what, in words. kDuplicate: the name.
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  Reason reason_;
  std::string what_;
};

/// Throws JsonError if the text is not JSON or holds a zero byte, if more than `max_depth`
/// arrays and objects lie in each other, or, with `unique_names`, if an object has two members of
/// one name.
Json parse_json(std::string_view text, size_t max_depth, bool unique_names);

}  // namespace packhorse
