#include "core/text_file.h"

#include <fstream>
#include <sstream>

#include "core/format.h"
#include "packhorse/error.h"

namespace packhorse {

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidArgument(concat("cannot read '", path.string(), "'"));
  return text.str();
}

}  // namespace packhorse
