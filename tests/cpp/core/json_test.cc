// Tests trees of JSON.
#include "core/json.h"

#include <limits>

#include "test.h"

using namespace packhorse;

namespace {

Json parse(const std::string& text) { return parse_json(text, 3, true); }

// Why a text is refused, or -1.
int reason(const std::string& text, size_t max_depth = 3, bool unique_names = true) {
  try {
    parse_json(text, max_depth, unique_names);
  } catch (const JsonError& error) {
    return error.reason();
  }
  return -1;
}

}  // namespace

TEST(json_values_have_their_kinds) {
  CHECK(parse("null").is_null());
  CHECK(parse("true").is_boolean() && parse("true").boolean());
  CHECK(parse("7").is_unsigned() && parse("7").is_integer() && parse("7").is_number());
  CHECK(!parse("-7").is_unsigned() && parse("-7").is_integer());
  CHECK(parse("7.0").is_number() && !parse("7.0").is_integer());
  CHECK(parse("99999999999999999999").is_number() && !parse("99999999999999999999").is_integer());
  CHECK(parse("\"7\"").is_string() && !parse("\"7\"").is_number());
  CHECK(parse("[]").is_array() && parse("{}").is_object());
}

TEST(json_numbers_are_exact) {
  CHECK(parse("18446744073709551615").number<uint64_t>() == std::numeric_limits<uint64_t>::max());
  CHECK(parse("-9223372036854775808").number<int64_t>() == std::numeric_limits<int64_t>::min());
  CHECK(parse("0.1").number<double>() == 0.1);
  CHECK(parse("3").number<float>() == 3.0f);
  CHECK(parse("1e-7").number<double>() == 1e-7);
}

TEST(json_members_are_found) {
  const Json json = parse(R"({"b": [1, 2], "a": {"c": "text"}, "": false})");
  CHECK(json.object().size() == 3 && json.object().front().name.empty());
  CHECK(json.find("b")->array()[1].number<int>() == 2);
  CHECK(json.find("a")->find("c")->text() == "text");
  CHECK(json.find("c") == nullptr && json.find("aa") == nullptr);
}

TEST(json_of_equal_names_the_last_stays) {
  const std::string text = R"({"a": 1, "b": 2, "a": [3], "a": 4})";
  CHECK(parse_json(text, 3, false).dump() == R"({"a":4,"b":2})");
  CHECK(reason(text) == JsonError::kDuplicate);
  CHECK(reason(R"([{"a": 1}, {"a": 1}])") == -1);
}

TEST(json_refuses_depth) {
  CHECK(reason("[[[]]]") == -1);
  CHECK(reason("[[[1, {}]]]") == JsonError::kDepth);
  CHECK(reason(R"({"a": {"b": {"c": 1}}})") == -1);
  CHECK(reason(R"({"a": {"b": {"c": [1]}}})") == JsonError::kDepth);
  CHECK(reason(std::string(1'000'000, '[')) == JsonError::kDepth);
  CHECK(reason("[1]", 0) == JsonError::kDepth);
}

TEST(json_refuses_what_is_none) {
  CHECK(reason(std::string("{}\0", 3)) == JsonError::kSyntax);
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\" 1}", "01", "nul", "[1] 2", "\"\xff\"",
                           "\"\n\"", "1e999", "'a'", "{a: 1}"}) {
    CHECK(reason(text) == JsonError::kSyntax);
  }
}

TEST(json_dump_gives_the_value_again) {
  for (const char* text :
       {"null", "false", "-3", "18446744073709551615", "2.5", "1e+300", "-0.0", "1e+05", "[]", "{}",
        R"([1,[2,"x"],{"a":null}])", R"({"a":1,"b":[true]})", R"("\"\\")"}) {
    CHECK(parse(text).dump() == text);
  }
  CHECK(parse("1e2").dump() == "100.0");
  // ASCII, with surrogates for what lies beyond 16 bits.
  CHECK(parse("\"\\u0001 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\x7f\"").dump() ==
        R"("\u0001 \u00e9 \u20ac \ud83d\ude00\u007f")");
}
