// Any bytes as a safetensors file: refused with InvalidArgument, or entries that lie within the
// file, in the order of their data, and cover it exactly.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/safetensors_header.h"
#include "packhorse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span file(reinterpret_cast<const char*>(data), size);
  try {
    size_t covered = 0;
    for (const packhorse::SafetensorsEntry& entry :
         packhorse::parse_safetensors_header(file, "input")) {
      if (covered != 0 && entry.begin != covered) std::abort();
      if (entry.begin > entry.end || entry.end > size) std::abort();
      covered = entry.end;
    }
    if (covered != 0 && covered != size) std::abort();
  } catch (const packhorse::InvalidArgument& error) {
    if (error.message().find("input: not a valid safetensors file") != 0) std::abort();
  }
  return 0;
}
