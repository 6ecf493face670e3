#include "packhorse/attention_algorithm.h"

#include <array>
#include <string>
#include <utility>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

constexpr std::array<std::pair<AttentionAlgorithm, const char*>, 6> kNames = {{
    {AttentionAlgorithm::kAuto, "auto"},
    {AttentionAlgorithm::kHopper, "hopper"},
    {AttentionAlgorithm::kOnline, "online"},
    {AttentionAlgorithm::kShort, "short"},
    {AttentionAlgorithm::kGrouped, "grouped"},
    {AttentionAlgorithm::kByteTransformer, "bytetransformer"},
}};

}  // namespace

const char* name_of(AttentionAlgorithm algorithm) {
  for (const auto& [value, name] : kNames) {
    if (value == algorithm) return name;
  }
  return "unknown";
}

AttentionAlgorithm parse_attention_algorithm(std::string_view name, std::string_view what) {
  std::string known;
  for (const auto& [value, text] : kNames) {
    if (name == text) return value;
    known += concat(known.empty() ? "'" : ", '", text, "'");
  }
  throw InvalidArgument(concat(what, " is '", name, "', expected one of ", known));
}

}  // namespace packhorse
