#include "core/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace packhorse {
namespace {

bool by_name(const Json::Member& a, const Json::Member& b) { return a.name < b.name; }
bool same_name(const Json::Member& a, const Json::Member& b) { return a.name == b.name; }

/// Makes a tree of what the library's parser finds.
class Builder {
 public:
  Builder(size_t max_depth, bool unique_names)
      : max_depth_(max_depth), unique_names_(unique_names) {}

  Json take() { return std::move(root_); }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(int64_t value) { return add(Json(value)); }
  bool number_unsigned(uint64_t value) { return add(Json(value)); }
  bool number_float(double value, const std::string&) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // no text holds it

  bool start_array(size_t) { return begin(false); }
  bool start_object(size_t) { return begin(true); }
  bool key(std::string& name) {
    begun_.back().members.push_back({std::move(name), Json()});
    return true;
  }
  bool end_array() {
    Json::Array items = std::move(begun_.back().items);
    begun_.pop_back();
    return add(Json(std::move(items)));
  }
  bool end_object() {
    Json::Object members = std::move(begun_.back().members);
    begun_.pop_back();
    std::stable_sort(members.begin(), members.end(), by_name);
    const auto twice = std::adjacent_find(members.begin(), members.end(), same_name);
    if (unique_names_ && twice != members.end()) {
      throw JsonError(JsonError::kDuplicate, twice->name);
    }
    return add(Json(std::move(members)));
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) {
    throw JsonError(JsonError::kSyntax, error.what());
  }

 private:
  /// An array or an object whose end was not read yet.
  struct Begun {
    bool is_object;
    Json::Array items;
    Json::Object members;
  };

  bool begin(bool is_object) {
    if (begun_.size() == max_depth_) throw JsonError(JsonError::kDepth, "nested too deeply");
    begun_.push_back({is_object, {}, {}});
    return true;
  }

  bool add(Json value) {
    if (begun_.empty()) {
      root_ = std::move(value);
    } else if (begun_.back().is_object) {
      begun_.back().members.back().value = std::move(value);
    } else {
      begun_.back().items.push_back(std::move(value));
    }
    return true;
  }

  size_t max_depth_;
  bool unique_names_;
  std::vector<Begun> begun_;
  Json root_;
};

void append_escaped(uint32_t unit, std::string& to) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  to += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) to += kDigits[unit >> shift & 15];
}

/// `text` is UTF-8, which the parser has checked.
void append_quoted(std::string_view text, std::string& to) {
  to += '"';
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    uint32_t code = first;
    if (first >= 0x80) {
      const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
      code = first & (0x3fu >> more);
      for (int k = 0; k < more && i < text.size(); ++k) {
        code = code << 6 | (static_cast<unsigned char>(text[i++]) & 0x3fu);
      }
    }
    if (code == '"' || code == '\\') {
      to += {'\\', static_cast<char>(code)};
    } else if (code >= 0x10000) {
      append_escaped(0xd800 + ((code - 0x10000) >> 10), to);
      append_escaped(0xdc00 + ((code - 0x10000) & 0x3ff), to);
    } else if (code < ' ' || code > '~') {
      append_escaped(code, to);
    } else {
      to += static_cast<char>(code);
    }
  }
  to += '"';
}

template <class T>
void append_number(T value, std::string& to) {
  std::array<char, 32> digits;
  const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), static_cast<size_t>(end - digits.data()));
  to += text;
  const bool looks_whole = text.find_first_not_of("-0123456789") == text.npos;
  if (std::is_floating_point_v<T> && looks_whole) to += ".0";
}

void append(const Json& value, std::string& to) {
  auto separate = [&to, first = true]() mutable {
    if (!std::exchange(first, false)) to += ',';
  };
  if (value.is_null()) {
    to += "null";
  } else if (value.is_boolean()) {
    to += value.boolean() ? "true" : "false";
  } else if (value.is_unsigned()) {
    append_number(value.number<uint64_t>(), to);
  } else if (value.is_integer()) {
    append_number(value.number<int64_t>(), to);
  } else if (value.is_number()) {
    append_number(value.number<double>(), to);
  } else if (value.is_string()) {
    append_quoted(value.text(), to);
  } else if (value.is_array()) {
    to += '[';
    for (const Json& item : value.array()) {
      separate();
      append(item, to);
    }
    to += ']';
  } else {
    to += '{';
    for (const Json::Member& member : value.object()) {
      separate();
      append_quoted(member.name, to);
      to += ':';
      append(member.value, to);
    }
    to += '}';
  }
}

}  // namespace

Json::Json(std::string value) : value_(std::make_unique<std::string>(std::move(value))) {}

Json::Json(Array value) : value_(std::make_unique<Array>(std::move(value))) {}

Json::Json(Object value) {
  std::stable_sort(value.begin(), value.end(), by_name);
  // Backwards, so that the last one stays.
  value.erase(value.begin(), std::unique(value.rbegin(), value.rend(), same_name).base());
  value_ = std::make_unique<Object>(std::move(value));
}

const Json* Json::find(std::string_view name) const {
  const Object& members = object();
  const auto found =
      std::lower_bound(members.begin(), members.end(), name,
                       [](const Member& member, std::string_view n) { return member.name < n; });
  return found == members.end() || found->name != name ? nullptr : &found->value;
}

std::string Json::dump() const {
  std::string text;
  append(*this, text);
  return text;
}

Json parse_json(std::string_view text, size_t max_depth, bool unique_names) {
  // The JSON library treats a zero byte as the end of its input.
  if (text.find('\0') != text.npos) {
    throw JsonError(JsonError::kSyntax, "the text holds a zero byte");
  }
  Builder builder(max_depth, unique_names);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace packhorse
