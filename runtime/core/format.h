// Builds strings for messages: concat("T = ", 12, " exceeds ", 8).
#pragma once

#include <sstream>
#include <string>

namespace packhorse {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  // Makes the stream throw where it runs out of memory; it would silently cut the text otherwise.
  out.exceptions(std::ios::badbit);
  (out << ... << parts);
  return out.str();
}

}  // namespace packhorse
