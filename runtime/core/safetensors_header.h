// Parses and validates the header of a safetensors file.
//
// The layout (https://github.com/huggingface/safetensors, "Format") is: 8 bytes little-endian N,
// then N bytes of JSON {name: {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__":
// {...}}, then the data. The tensors must cover the data exactly, without gaps or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace packhorse {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as written in the file: "F32", "BF16", ...
  std::vector<int64_t> shape;
  size_t begin = 0;  // in bytes from the start of the file
  size_t end = 0;
};

/// Returns the entries in the order of their data. Throws InvalidArgument saying what is wrong with
/// the file. `path` is used in messages only.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const char> file,
                                                       const std::string& path);

/// Makes a name from a file safe for a message: quoted, printable and of limited length.
std::string quote(const std::string& name);

}  // namespace packhorse
