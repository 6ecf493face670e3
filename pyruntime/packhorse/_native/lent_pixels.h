// Memory of NumPy in which Pillow makes an image, by way of the Arrow C data interface
// (https://arrow.apache.org/docs/format/CDataInterface.html).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "packhorse/_native/arrays.h"
#include "packhorse/_native/image.h"

namespace packhorse {

/// Arrow's struct ArrowSchema.
struct ArrowSchema {
  const char* format = nullptr;
  const char* name = nullptr;
  const char* metadata = nullptr;
  int64_t flags = 0, n_children = 0;
  ArrowSchema** children = nullptr;
  ArrowSchema* dictionary = nullptr;
  void (*release)(ArrowSchema*) = nullptr;
  void* private_data = nullptr;
};

/// A struct of Arrow in a capsule, which releases it unless its reader has.
template <class Struct>
py::object arrow_capsule(std::unique_ptr<Struct> content, const char* name) {
  py::object capsule = py::object::steal(PyCapsule_New(content.get(), name, [](PyObject* self) {
    const std::unique_ptr<Struct> held(
        static_cast<Struct*>(PyCapsule_GetPointer(self, PyCapsule_GetName(self))));
    if (held->release != nullptr) held->release(held.get());
  }));
  static_cast<void>(content.release());
  return capsule;
}

/// Owner and address of an array that is lent, until it is released.
struct Lent {
  std::array<const void*, 2> buffers{};
  py::object owner;
};

/// (ArrowSchema, ArrowArray) of `pixels` numbers of 32 bits, which lie in a uint8 array of 4 bytes
/// for each. The array lives as long as anybody reads from it or writes to it.
inline py::object lend_pixels(PyObject* memory, int64_t pixels) {
  auto lent = std::make_unique<Lent>();
  lent->buffers[1] = array_bytes(memory, 4 * pixels);
  lent->owner = py::object::borrow(memory);
  auto schema = std::make_unique<ArrowSchema>();
  schema->format = "I";
  schema->name = "";
  schema->release = [](ArrowSchema* self) { self->release = nullptr; };
  auto array = std::make_unique<ArrowArray>();
  array->length = pixels;
  array->n_buffers = 2;
  array->buffers = lent->buffers.data();
  array->private_data = lent.get();
  array->release = [](ArrowArray* self) {
    self->release = nullptr;
    const PyGILState_STATE state = PyGILState_Ensure();  // Arrow lets any thread release it
    delete static_cast<Lent*>(self->private_data);
    PyGILState_Release(state);
  };
  static_cast<void>(lent.release());
  py::object first = arrow_capsule(std::move(schema), "arrow_schema");
  return py::make_tuple(first, arrow_capsule(std::move(array), "arrow_array"));
}

}  // namespace packhorse
