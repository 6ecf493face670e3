// Contents of a converted folder.
#pragma once

#include <memory>
#include <string>

#include "packhorse/weight_source.h"

namespace packhorse {

/// packhorse.json of the folder. Throws InvalidArgument, which says how such a folder is made,
/// where there is none.
std::string read_spec(const std::string& folder);
/// model.safetensors of the folder.
std::unique_ptr<WeightSource> open_weights(const std::string& folder);

}  // namespace packhorse
