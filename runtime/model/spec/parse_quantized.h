// Parses the part of a spec that says which weights stay quantised in groups.
#pragma once

#include "model/spec/json_fields.h"
#include "model/spec/spec.h"

namespace packhorse {

/// Reads the field 'quantized', where there is one. The layers of `spec` are known.
void parse_quantized(Fields& fields, Spec& spec);

}  // namespace packhorse
