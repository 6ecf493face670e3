// Exchange of device arrays as DLPack capsules (https://dmlc.github.io/dlpack), in both directions.
// The structs are those of DLPack's C interface, versions 0.x and 1.x.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "packhorse/device_array.h"

namespace packhorse::dlpack {

constexpr int32_t kCuda = 2;
constexpr uint8_t kInt = 0;
constexpr uint8_t kFloat = 2;
constexpr uint8_t kBfloat = 4;

struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

// The contents of a capsule named "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

// The contents of a capsule named "dltensor_versioned", which DLPack has since version 1.0.
struct ManagedVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

template <class M>
constexpr const char* kName = "dltensor";
template <>
inline constexpr const char* kName<ManagedVersioned> = "dltensor_versioned";

/// An array that a consumer holds. The consumer may call the deleter in any thread, without the
/// interpreter lock.
template <class M>
struct Exported {
  std::shared_ptr<DeviceArray> array;
  int64_t shape[TensorView::kMaxRank];
  int64_t strides[TensorView::kMaxRank];
  M managed = {};

  explicit Exported(std::shared_ptr<DeviceArray> held) : array(std::move(held)) {
    const TensorView& view = array->view();
    for (int i = view.rank - 1; i >= 0; --i) {
      shape[i] = view.shape[i];
      strides[i] = i == view.rank - 1 ? 1 : strides[i + 1] * shape[i + 1];
    }
    const uint8_t code = view.dtype == DType::kBFloat16 ? kBfloat : kFloat;
    managed.tensor = {.data = view.data,
                      .device_type = kCuda,
                      .device_id = array->device().index,
                      .rank = view.rank,
                      .type_code = code,
                      .type_bits = static_cast<uint8_t>(8 * size_of(view.dtype)),
                      .type_lanes = 1,
                      .shape = shape,
                      .strides = strides,
                      .byte_offset = 0};
    managed.context = this;
    managed.deleter = [](M* self) { delete static_cast<Exported*>(self->context); };
    if constexpr (requires { managed.major; }) managed.major = 1;
  }

  /// The capsule's destructor. A consumer renames the capsule and calls the deleter itself; if none
  /// took it, this calls the deleter.
  static void destroy(PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, kName<M>)) return;
    auto* managed = static_cast<M*>(PyCapsule_GetPointer(capsule, kName<M>));
    managed->deleter(managed);
  }

  static PyObject* make(std::shared_ptr<DeviceArray> array) {
    auto exported = std::make_unique<Exported>(std::move(array));
    PyObject* capsule = PyCapsule_New(&exported->managed, kName<M>, destroy);
    if (capsule != nullptr) exported.release();
    return capsule;
  }
};

inline PyObject* make_capsule(const std::shared_ptr<DeviceArray>& array, bool versioned) {
  return versioned ? Exported<ManagedVersioned>::make(array) : Exported<Managed>::make(array);
}

/// Returns the tensor in a capsule, or null with a Python error set if it holds none. The capsule
/// keeps the tensor and stays unused: its own destructor tells the producer when it is deleted.
inline const Tensor* look_into(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName<ManagedVersioned>)) {
    auto* managed =
        static_cast<ManagedVersioned*>(PyCapsule_GetPointer(capsule, kName<ManagedVersioned>));
    if (managed->major == 1) return &managed->tensor;
    PyErr_Format(PyExc_BufferError, "DLPack %u.%u, expected 1.x", managed->major, managed->minor);
    return nullptr;
  }
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName<Managed>));
  return managed == nullptr ? nullptr : &managed->tensor;
}

/// Keeps a Python object alive for C++ code, which may release it in any thread.
inline std::shared_ptr<const void> hold(PyObject* object) {
  Py_INCREF(object);
  return std::shared_ptr<const void>(object, [](const void* held) {
    if (!Py_IsInitialized()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(static_cast<PyObject*>(const_cast<void*>(held)));
    PyGILState_Release(state);
  });
}

}  // namespace packhorse::dlpack
