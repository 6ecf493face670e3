// Arrays of NumPy, through their array interface (`__array_struct__`): neither buffers nor NumPy's
// C API belong to the stable interface of Python 3.10, for which the extension modules are built.
// Everything here is called with the interpreter lock held.
#pragma once

#include <Python.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "packhorse/error.h"

namespace packhorse {
namespace py {

/// Says that a Python exception is set, which Cython raises in place of this one.
class error_already_set : public std::exception {
 public:
  const char* what() const noexcept override { return "a Python exception is set"; }
};

/// A reference to a Python object, or to none.
class object {
 public:
  object() = default;
  object(const object& other) : pointer_(other.pointer_) { Py_XINCREF(pointer_); }
  object(object&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  object& operator=(object other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~object() { Py_XDECREF(pointer_); }

  /// Takes over a new reference. Throws error_already_set if it is null.
  static object steal(PyObject* pointer) {
    if (pointer == nullptr) throw error_already_set();
    object result;
    result.pointer_ = pointer;
    return result;
  }
  static object borrow(PyObject* pointer) {
    Py_XINCREF(pointer);
    return steal(pointer);
  }

  PyObject* get() const { return pointer_; }
  PyObject* release() { return std::exchange(pointer_, nullptr); }

  /// Hands the reference to Cython.
  operator PyObject*() && { return release(); }

 private:
  PyObject* pointer_ = nullptr;
};

inline object none() { return object::borrow(Py_None); }

template <class... Objects>
object make_tuple(const Objects&... objects) {
  return object::steal(PyTuple_Pack(sizeof...(objects), object(objects).get()...));
}

inline object make_tuple(const std::vector<object>& objects) {
  object tuple = object::steal(PyTuple_New(static_cast<Py_ssize_t>(objects.size())));
  for (size_t i = 0; i < objects.size(); ++i) {
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), object(objects[i]).release());
  }
  return tuple;
}

using tuple = object;

}  // namespace py

/// The fields of an array in NumPy's array interface (PyArrayInterface).
struct ArrayInterface {
  int version;
  int rank;
  char kind;
  int itemsize;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  void* data;
  PyObject* descr;
};

/// NumPy's name of a type, such as "f4".
template <class T>
struct TypeName {
  static constexpr char kKind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
  static constexpr char kText[] = {kKind, '0' + sizeof(T), 0};
};

/// The interface of a C-contiguous array of T, which `capsule` holds. Throws error_already_set,
/// with a TypeError, if the object is not such an array.
template <class T>
const ArrayInterface& interface_of(PyObject* array, py::object& capsule) {
  static PyObject* const name = PyUnicode_InternFromString("__array_struct__");
  PyObject* const found = PyObject_GetAttr(array, name);
  if (found == nullptr) {
    PyErr_Format(PyExc_TypeError, "expected a NumPy array of %s, found %R", TypeName<T>::kText,
                 Py_TYPE(array));
    throw py::error_already_set();
  }
  capsule = py::object::steal(found);
  const void* const pointer = PyCapsule_GetPointer(found, nullptr);
  if (pointer == nullptr) throw py::error_already_set();
  const auto& interface = *static_cast<const ArrayInterface*>(pointer);
  constexpr int kUsable = 0x1 | 0x200;  // C-contiguous, in native byte order
  if (interface.kind != TypeName<T>::kKind || interface.itemsize != sizeof(T) ||
      (interface.flags & kUsable) != kUsable) {
    PyErr_Format(PyExc_TypeError, "expected a C-contiguous array of %s, found one of %c%d%s",
                 TypeName<T>::kText, interface.kind, interface.itemsize,
                 (interface.flags & kUsable) == kUsable
                     ? ""
                     : " that is not contiguous and in native byte order");
    throw py::error_already_set();
  }
  return interface;
}

/// The elements of an int32 vector, which live as long as the array does; none for None.
inline std::span<const int32_t> int32_vector(PyObject* array) {
  if (array == Py_None) return {};
  py::object capsule;
  const ArrayInterface& interface = interface_of<int32_t>(array, capsule);
  if (interface.rank != 1) {
    PyErr_Format(PyExc_TypeError, "expected a vector, found %d dimensions", interface.rank);
    throw py::error_already_set();
  }
  return {static_cast<const int32_t*>(interface.data), static_cast<size_t>(interface.shape[0])};
}

/// A copy of the elements of an int32 vector; none for None.
inline std::vector<int32_t> int32_values(PyObject* array) {
  const std::span<const int32_t> values = int32_vector(array);
  return {values.begin(), values.end()};
}

/// Where the elements of a float32 array lie; null for None.
inline float* float_pointer(PyObject* array) {
  if (array == Py_None) return nullptr;
  py::object capsule;
  return static_cast<float*>(interface_of<float>(array, capsule).data);
}

/// The elements of a float32 array of any shape, which live as long as the array does.
inline std::span<const float> float_values(PyObject* array) {
  py::object capsule;
  const ArrayInterface& interface = interface_of<float>(array, capsule);
  size_t size = 1;
  for (int i = 0; i < interface.rank; ++i) size *= static_cast<size_t>(interface.shape[i]);
  return {static_cast<const float*>(interface.data), size};
}

inline PyObject* make_empty = nullptr;  // numpy.empty, once set_maker was called

inline void set_maker(PyObject* empty) { make_empty = py::object::borrow(empty).release(); }

/// A C-contiguous array of T in host memory, which lives as long as this does.
template <class T>
class Array {
 public:
  Array() = default;

  /// Throws as interface_of does. Indices are copied: they are checked, and must not change then,
  /// whatever another thread writes to the caller's array.
  explicit Array(PyObject* array) : Array(py::object::borrow(array)) {
    if constexpr (std::is_same_v<T, int32_t>) {
      copied_ = std::make_shared<std::vector<T>>(data_, data_ + size_);
      data_ = copied_->data();
    }
  }

  /// A new array, whose values are not set.
  Array(int64_t rows, int64_t columns)
      : Array(py::object::steal(
            PyObject_CallFunction(make_empty, "(LL)s", static_cast<long long>(rows),
                                  static_cast<long long>(columns), TypeName<T>::kText))) {}

  operator py::object() const { return object_; }

  const T* data() const { return data_; }
  T* mutable_data() { return data_; }
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t shape(int64_t i) const { return shape_.at(static_cast<size_t>(i)); }
  int64_t size() const { return size_; }
  int64_t nbytes() const { return size_ * int64_t{sizeof(T)}; }

  T at(int64_t i) const {
    check_index(i);
    return data_[i];
  }
  T at(int64_t i, int64_t j) const {
    check_index(i * shape(1) + j);
    return data_[i * shape(1) + j];
  }

 private:
  explicit Array(py::object array) : object_(std::move(array)) {
    py::object capsule;
    const ArrayInterface& interface = interface_of<T>(object_.get(), capsule);
    data_ = static_cast<T*>(interface.data);
    shape_.assign(interface.shape, interface.shape + interface.rank);
    size_ = 1;
    for (const int64_t extent : shape_) size_ *= extent;
  }

  void check_index(int64_t i) const {
    if (i < 0 || i >= size_) throw InvalidArgument("an array has fewer elements than expected");
  }

  py::object object_;
  std::shared_ptr<std::vector<T>> copied_;
  T* data_ = nullptr;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
};

}  // namespace packhorse
