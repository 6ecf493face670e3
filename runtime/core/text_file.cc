#include "core/text_file.h"

#include <array>
#include <fstream>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  // A stream that copied all of it would call a lack of memory a failure of the file.
  std::array<char, 4096> part;
  while (file.read(part.data(), part.size()), file.gcount() > 0) {
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof() || file.bad()) throw InvalidArgument(concat("cannot read '", path.string(), "'"));
  return text;
}

}  // namespace packhorse
