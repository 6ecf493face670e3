// The header of a safetensors file, validated whole.
//
// Layout (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian N, then N
// bytes of JSON {name: {"dtype", "shape", "data_offsets": [begin, end)}, "__metadata__": {...}},
// then the data, which the tensors must cover exactly, without gap or overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace packhorse {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as in the file: "F32", "BF16", ...
  std::vector<int64_t> shape;
  size_t begin = 0;  // bytes from the start of the file
  size_t end = 0;
};

/// Entries in the order of their data. Throws InvalidArgument saying what is wrong with the file.
/// `path` is for messages.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const char> file,
                                                       const std::string& path);

/// A name from a file, fit for a message: quoted, printable, not endless.
std::string quote(const std::string& name);

}  // namespace packhorse
