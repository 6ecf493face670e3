// Reading of small files.
#pragma once

#include <filesystem>
#include <string>

namespace packhorse {

/// The whole file. Throws InvalidArgument if it cannot be read.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace packhorse
