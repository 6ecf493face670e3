// Images of Python as the runtime reads them: NumPy arrays, and Pillow's memory by way of the Arrow
// C data interface (https://arrow.apache.org/docs/format/CDataInterface.html).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "core/format.h"
#include "image/features.h"
#include "packhorse/_native/arrays.h"

namespace packhorse {

/// Arrow's struct ArrowArray.
struct ArrowArray {
  int64_t length = 0, null_count = 0, offset = 0, n_buffers = 0, n_children = 0;
  const void** buffers = nullptr;
  ArrowArray** children = nullptr;
  ArrowArray* dictionary = nullptr;
  void (*release)(ArrowArray*) = nullptr;
  void* private_data = nullptr;
};

/// The bytes of `pixels` pixels that a capsule named "arrow_array" holds, as Pillow exports them:
/// bytes for 1 channel, lists of 4 bytes for more.
inline const uint8_t* arrow_pixels(PyObject* capsule, int64_t pixels, int pixel_stride) {
  const auto* array = static_cast<const ArrowArray*>(PyCapsule_GetPointer(capsule, "arrow_array"));
  if (array == nullptr) throw py::error_already_set();
  if (array->release == nullptr || array->length != pixels) {
    throw InvalidArgument(concat("an image has ", array->length, " pixels, expected ", pixels));
  }
  int64_t offset = array->offset;
  if (pixel_stride > 1) {
    if (array->n_children != 1) throw InvalidArgument("the pixels of an image are not lists");
    offset = offset * pixel_stride + array->children[0]->offset;
    array = array->children[0];
  }
  if (array->n_buffers < 2 || array->length < pixels * pixel_stride) {
    throw InvalidArgument("an image has no memory of its own");
  }
  return static_cast<const uint8_t*>(array->buffers[1]) + offset;
}

/// The bytes of a uint8 array, of which there must be `bytes`.
inline const uint8_t* array_bytes(PyObject* array, int64_t bytes) {
  py::object capsule;
  const ArrayInterface& interface = interface_of<uint8_t>(array, capsule);
  int64_t size = 1;
  for (int i = 0; i < interface.rank; ++i) size *= interface.shape[i];
  if (size != bytes) {
    throw InvalidArgument(concat("an image has ", size, " bytes, expected ", bytes));
  }
  return static_cast<const uint8_t*>(interface.data);
}

/// Adds `rows` rows to an image. `part` must live as long as the image.
inline void add_rows(image::Pixels& pixels, PyObject* part, int64_t rows) {
  constexpr int64_t kMost = image::kMostOfSide;
  if (rows < 0 || rows > kMost || pixels.width < 0 || pixels.width > kMost ||
      pixels.pixel_stride < 1 || pixels.pixel_stride > 4) {
    throw InvalidArgument(concat("an image of ", pixels.width, " x ", rows, " pixels of ",
                                 pixels.pixel_stride, " bytes, expected sides of up to ", kMost));
  }
  const int64_t row_bytes = pixels.width * pixels.pixel_stride;
  const uint8_t* data = PyCapsule_IsValid(part, "arrow_array") != 0
                            ? arrow_pixels(part, rows * pixels.width, pixels.pixel_stride)
                            : array_bytes(part, rows * row_bytes);
  for (int64_t row = 0; row < rows; ++row) pixels.rows.push_back(data + row * row_bytes);
}

/// Looks a name up. Throws InvalidArgument with the names that there are.
template <class T>
T choose_of(const char* what, const std::string& name, const std::map<std::string, T>& choices) {
  const auto found = choices.find(name);
  if (found != choices.end()) return found->second;
  std::string known;
  for (const auto& [text, value] : choices) known += (known.empty() ? "" : ", ") + text;
  throw InvalidArgument(concat(what, " is '", name, "', expected one of ", known));
}

inline image::Filter parse_filter(const std::string& name) {
  using image::Filter;
  return choose_of<Filter>("resample", name,
                           {{"nearest", Filter::kNearest},
                            {"box", Filter::kBox},
                            {"bilinear", Filter::kBilinear},
                            {"hamming", Filter::kHamming},
                            {"bicubic", Filter::kBicubic},
                            {"lanczos", Filter::kLanczos}});
}

inline image::Rule parse_rule(const std::string& name) {
  using image::Rule;
  return choose_of<Rule>("backend", name,
                         {{"pil", Rule::kPillow}, {"torchvision", Rule::kTorchvision}});
}

inline uint8_t* output_bytes(PyObject* array, int64_t bytes) {
  return const_cast<uint8_t*>(array_bytes(array, bytes));
}

/// The numbers of all bytes, from a float32 array [3, 256].
inline image::Values parse_values(PyObject* array) {
  py::object capsule;
  const ArrayInterface& interface = interface_of<float>(array, capsule);
  image::Values values;
  if (interface.rank != 2 || interface.shape[0] != 3 || interface.shape[1] != 256) {
    throw InvalidArgument("the numbers of bytes are not an array of 3 x 256");
  }
  const auto* from = static_cast<const float*>(interface.data);
  for (auto& channel : values) {
    std::copy(from, from + channel.size(), channel.begin());
    from += channel.size();
  }
  return values;
}

/// Gives each plan its part of a float32 array, which they fill from `first` on in their order.
inline void place(std::vector<image::Plan>& plans, PyObject* out, int64_t first) {
  py::object capsule;
  const ArrayInterface& interface = interface_of<float>(out, capsule);
  int64_t size = 1;
  for (int i = 0; i < interface.rank; ++i) size *= interface.shape[i];
  for (image::Plan& plan : plans) {
    const auto [height, width] = plan.padded;
    if (height < 0 || width < 0 || height > image::kMostOfSide || width > image::kMostOfSide ||
        first < 0 || 3 * height * width > size - first) {
      throw InvalidArgument(concat("the output has room for ", size, " numbers, which an image of ",
                                   height, " x ", width, " at ", first, " exceeds"));
    }
    plan.out = static_cast<float*>(interface.data) + first;
    first += 3 * height * width;
  }
}

}  // namespace packhorse
