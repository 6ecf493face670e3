// Bytes of image files, as they come within texts and before they are decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "packhorse/export.h"

namespace packhorse::image {

/// Bytes that `text` stands for, if it is base64 (RFC 4648, section 4, padded); those of
/// `decode_base64`.
PACKHORSE_API size_t base64_bytes(std::string_view text);

/// Writes `base64_bytes(text)` bytes to `out`. False where `text` has a length that is no multiple
/// of four, or characters that are not of the alphabet; what was written is then of no use.
PACKHORSE_API bool decode_base64(std::string_view text, uint8_t* out);

/// Markers of the beginning of a scan (JPEG: FF DA), of which a decoder reads the whole image each.
PACKHORSE_API int64_t count_scans(std::span<const uint8_t> file);

}  // namespace packhorse::image
