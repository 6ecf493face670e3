#include "session/converted_folder.h"

#include <filesystem>

#include "core/format.h"
#include "core/text_file.h"
#include "packhorse/error.h"

namespace packhorse {

std::string read_spec(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder) / "packhorse.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw InvalidArgument(
        concat("'", folder, "' has no packhorse.json, expected a folder written by ",
               "`packhorse convert MODEL FOLDER`, which reads those of Hugging ", "Face"));
  }
  return read_text_file(path);
}

std::unique_ptr<WeightSource> open_weights(const std::string& folder) {
  return open_safetensors({(std::filesystem::path(folder) / "model.safetensors").string()});
}

}  // namespace packhorse
