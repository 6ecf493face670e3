// One call of an operator: the arrays that it puts on the device and the result that it takes from
// there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core/format.h"
#include "ops/backend.h"
#include "ops/ops.h"
#include "packhorse/_native/arrays.h"
#include "packhorse/device_array.h"
#include "packhorse/error.h"
#include "packhorse/packed_tokens.h"

namespace packhorse {

// packhorse.ops has converted its arguments to these before.
using FloatArray = Array<float>;
using IntArray = Array<int32_t>;

/// A row-major array that lies on the device.
struct DeviceView {
  uintptr_t pointer = 0;
  std::vector<int64_t> shape;
  std::string dtype;
};

inline constexpr char kDeviceView[] = "packhorse.DeviceView";  // the name of its capsules

inline py::object make_device_view(uintptr_t pointer, std::vector<int64_t> shape,
                                   std::string dtype) {
  auto view = std::make_unique<DeviceView>(DeviceView{pointer, std::move(shape), std::move(dtype)});
  py::object capsule = py::object::steal(PyCapsule_New(view.get(), kDeviceView, [](PyObject* self) {
    delete static_cast<DeviceView*>(PyCapsule_GetPointer(self, kDeviceView));
  }));
  view.release();
  return capsule;
}

/// A T that is made of a Python object, or null for None.
template <class T>
std::optional<T> maybe(PyObject* object) {
  if (object == Py_None) return std::nullopt;
  return T(object);
}

/// An array of T on the host, or one on the device.
template <class T>
class HostOrDevice : public std::variant<DeviceView, Array<T>> {
 public:
  using Base = std::variant<DeviceView, Array<T>>;
  using Base::Base;
  HostOrDevice() = default;

  /// An array of NumPy, or what make_device_view gave. Throws as Array does.
  explicit HostOrDevice(PyObject* object) : Base(of(object)) {}

 private:
  static Base of(PyObject* object) {
    if (!PyCapsule_IsValid(object, kDeviceView)) return Array<T>(object);
    return *static_cast<DeviceView*>(PyCapsule_GetPointer(object, kDeviceView));
  }
};

using Floats = HostOrDevice<float>;
using Ints = HostOrDevice<int32_t>;
using Norm = std::tuple<Floats, std::optional<Floats>, float>;  // gamma, beta, eps
using Linear = std::tuple<Floats, std::optional<Floats>>;       // weight, bias

/// The backend that calls and results share. Only one call uses it at a time.
struct SharedBackend {
  Backend backend;
  bool skinny = false;  // LinearFormat::skinny of dense layers
  std::mutex mutex;
};

template <class Array>
std::vector<int64_t> shape_of(const std::variant<DeviceView, Array>& array) {
  if (const auto* view = std::get_if<DeviceView>(&array)) return view->shape;
  return std::get<Array>(array).shape();
}

template <class Array>
int64_t size_of_vector(const char* name, const std::variant<DeviceView, Array>& array) {
  const std::vector<int64_t> shape = shape_of(array);
  if (shape.size() == 1) return shape[0];
  throw InvalidArgument(concat(name, " has ", shape.size(), " dimensions, expected 1"));
}

inline std::pair<int64_t, int64_t> shape_of_matrix(const char* name, const Floats& array) {
  const std::vector<int64_t> shape = shape_of(array);
  if (shape.size() != 2) {
    throw InvalidArgument(concat(name, " has ", shape.size(), " dimensions, expected 2"));
  }
  // An array without elements may have any extents. With this limit, products of extents do not
  // overflow.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (std::min(shape[0], shape[1]) < 0 || std::max(shape[0], shape[1]) > kMost) {
    throw InvalidArgument(concat(name, " is [", shape[0], ", ", shape[1], "], expected 0 to ",
                                 kMost, " rows and columns"));
  }
  return {shape[0], shape[1]};
}

/// A result that stays on the device. It is complete, because the call has waited for it.
class OwnedArray final : public DeviceArray {
 public:
  OwnedArray(std::shared_ptr<SharedBackend> shared, std::unique_ptr<DeviceMemory> memory,
             const TensorView& view, StreamHandle stream)
      : DeviceArray(shared->backend.device->device(), view, stream),
        shared_(std::move(shared)),
        memory_(std::move(memory)),
        readers_(*shared_->backend.device->io()) {
    if (stream != 0) readers_.add(stream);
  }
  ~OwnedArray() override {
    readers_.finish();
    readers_.wait();
  }

  void make_ready_on(StreamHandle stream) override { readers_.add(stream); }
  void check() override {}
  void read(float* to) override {
    if (view().size() == 0) return;
    const std::lock_guard lock(shared_->mutex);
    DeviceContext& device = *shared_->backend.device;
    const size_t bytes = static_cast<size_t>(view().size()) * sizeof(float);
    const auto converted = device.allocate(bytes);
    const TensorView rows(converted->data(), DType::kFloat32, view().rows(), view().columns());
    shared_->backend.ops->cast({.x = view(), .out = rows});
    const DownloadScope downloads(device);
    device.download(to, rows.data, bytes);
    device.synchronize();
  }

 private:
  std::shared_ptr<SharedBackend> shared_;
  std::unique_ptr<DeviceMemory> memory_;
  Readers readers_;
};

/// One call. Its arrays lie either all on the host or all on the device, except that offsets may
/// lie on the host even if the others do not (but not those of `embed`). On the device, matrices
/// have the operators' dtype, vectors are float32 and ids int32.
class Call {
 public:
  /// `stream` is null if the arrays lie on the host, and 0 if there is no stream to be ordered
  /// with.
  Call(std::shared_ptr<SharedBackend> shared, DType dtype, std::optional<StreamHandle> stream)
      : shared_(std::move(shared)),
        lock_(shared_->mutex),
        device_(*shared_->backend.device),
        packer_(*shared_->backend.packer),
        ops_(*shared_->backend.ops),
        format_(packer_.format(dtype)),
        dtype_(format_.compute),
        on_device_(stream.has_value()),
        stream_(stream.value_or(0)) {
    if (stream_ != 0) device_io().order(stream_, device_io().stream());
  }

  /// True if the arrays of the call lie on the device.
  bool on_device() const { return on_device_; }

  void* allocate(size_t bytes) {
    memory_.push_back(device_.allocate(bytes));
    return memory_.back()->data();
  }

  TensorView matrix(int64_t rows, int64_t columns, DType dtype) {
    const auto elements = static_cast<size_t>(rows * columns);
    return TensorView(allocate(elements * size_of(dtype)), dtype, rows, columns);
  }

  TensorView result(int64_t rows, int64_t columns) { return matrix(rows, columns, dtype_); }

  /// Puts a matrix on the device in the operators' dtype.
  TensorView put(const char* name, const Floats& array) {
    const auto [rows, columns] = shape_of_matrix(name, array);
    if (const DeviceView* view = on_device(name, array)) {
      return TensorView(address(name, *view, dtype_), dtype_, rows, columns);
    }
    const TensorView host = matrix(rows, columns, DType::kFloat32);
    upload(host.data, std::get<FloatArray>(array));
    if (dtype_ == DType::kFloat32) return host;
    const TensorView converted = matrix(rows, columns, dtype_);
    ops_.cast({.x = host, .out = converted});
    return converted;
  }
  TensorView put(const char* name, const std::optional<Floats>& array) {
    return array ? put(name, *array) : TensorView();
  }

  /// Puts float32 values of any shape on the device.
  const float* put_floats(const char* name, const Floats& array) {
    if (const DeviceView* view = on_device(name, array)) {
      return static_cast<const float*>(address(name, *view, DType::kFloat32));
    }
    const auto& host = std::get<FloatArray>(array);
    void* data = allocate(static_cast<size_t>(host.nbytes()));
    upload(data, host);
    return static_cast<const float*>(data);
  }

  const int32_t* put_ints(const IntArray& array) {
    void* data = allocate(static_cast<size_t>(array.nbytes()));
    upload(data, array);
    return static_cast<const int32_t*>(data);
  }

  const float* put_vector(const char* name, const std::optional<Floats>& array, int64_t size) {
    if (!array) return nullptr;
    if (shape_of(*array) != std::vector<int64_t>{size}) {
      throw InvalidArgument(concat(name, ": expected a vector of ", size));
    }
    return put_floats(name, *array);
  }

  template <class T>
  const T* put_values(const std::vector<T>& values) {
    void* data = allocate(values.size() * sizeof(T));
    device_.upload(data, values.data(), values.size() * sizeof(T));
    return static_cast<const T*>(data);
  }

  template <class Array>
  void upload(void* to, const Array& array) {
    device_.upload(to, array.data(), static_cast<size_t>(array.nbytes()));
  }

  /// The matrix as an array on the host, of the dtype that it has.
  template <class Array>
  Array download(const TensorView& matrix) {
    Array host(matrix.rows(), matrix.columns());
    const DownloadScope downloads(device_);
    device_.download(host.mutable_data(), matrix.data, static_cast<size_t>(host.nbytes()));
    device_.synchronize();
    return host;
  }

  std::vector<uint8_t> download_bytes(const TensorView& matrix) {
    std::vector<uint8_t> host(static_cast<size_t>(matrix.size()) * size_of(matrix.dtype));
    const DownloadScope downloads(device_);
    device_.download(host.data(), matrix.data, host.size());
    device_.synchronize();
    return host;
  }

  LinearWeight put_linear(const char* name, const Linear& layer) {
    const auto& [weight, bias] = layer;
    LinearWeight result;
    std::tie(result.out_features, result.in_features) = shape_of_matrix(name, weight);
    if (result.out_features == 0 || result.in_features == 0) {
      throw InvalidArgument(concat(name, " is [", result.out_features, ", ", result.in_features,
                                   "], expected at least one row and one column"));
    }
    result.dtype = format_.weight;
    result.skinny = shared_->skinny;
    void* packed = allocate(packer_.bytes(result.in_features, result.out_features, format_));
    if (on_device(name, weight) != nullptr) {
      packer_.pack_on_device(put(name, weight), format_, packed);
    } else {
      packer_.pack(std::get<FloatArray>(weight).data(), result.in_features, result.out_features,
                   format_, packed);
    }
    // A GEMM may start to read its weight while earlier kernels, such as those that pack it, still
    // run.
    device_.synchronize();
    result.data = packed;
    result.bias = put_vector("bias", bias, result.out_features);
    return result;
  }

  /// Packs a weight that is quantised in groups and lies on the host, whose sizes are in `layer`.
  void pack_groups(LinearWeight& layer, const WeightGroups& groups, const GroupedWeight& weight) {
    const LinearFormat format = packer_.grouped_format(groups, dtype_);
    void* packed = allocate(packer_.bytes(layer.in_features, layer.out_features, format));
    packer_.pack_groups(weight, layer.in_features, layer.out_features, format, packed);
    device_.synchronize();
    layer.dtype = format.weight;
    layer.groups = format.groups;
    layer.data = packed;
  }

  /// Replaces x by its rows in e4m3, if that is what a layer with this weight reads.
  void quantize(TensorView& x, Float8Scales& scales, const LinearWeight& weight) {
    if (weight.dtype != DType::kFloat8) return;
    NormArgs args;
    args.x = x;
    args.quantized.values = matrix(x.rows(), x.columns(), DType::kFloat8);
    args.quantized.scales =
        static_cast<float*>(allocate(static_cast<size_t>(x.rows()) * sizeof(float)));
    ops_.norm(args);
    x = args.quantized.values;
    scales.rows = args.quantized.scales;
  }

  NormWeight put_norm(const std::optional<Norm>& norm, NormKind kind, int64_t size) {
    if (!norm) return {};
    const auto& [gamma, beta, eps] = *norm;
    return {.kind = kind,
            .gamma = put_vector("gamma", gamma, size),
            .beta = put_vector("beta", beta, size),
            .eps = eps};
  }

  BatchView put_batch(const Ints& cu_seqlens, int64_t tokens) {
    if (std::holds_alternative<DeviceView>(cu_seqlens)) {
      return load({}, cu_seqlens, {}, {}, {.max_seqlen = tokens}, tokens).batch;
    }
    const auto& host = std::get<IntArray>(cu_seqlens);
    const PackedTokens batch{.ids = {},
                             .cu_seqlens = {host.data(), static_cast<size_t>(host.size())},
                             .type_ids = {},
                             .position_ids = {}};
    check_offsets(batch.cu_seqlens, tokens);
    return {.num_tokens = tokens,
            .num_sequences = batch.num_sequences(),
            .max_seqlen = batch.max_seqlen(),
            .cu_seqlens = static_cast<const int32_t*>(put_ints(host))};
  }

  struct Tokens {
    BatchView batch;
    const int32_t* ids = nullptr;
    const int32_t* type_ids = nullptr;
    const int32_t* position_ids = nullptr;
  };

  /// Puts a batch on the device. `limits` comes without sizes; those are the batch's.
  Tokens put_tokens(const Ints& ids, const Ints& cu_seqlens, const std::optional<Ints>& type_ids,
                    const std::optional<Ints>& position_ids, PackedLimits limits) {
    const int64_t tokens = size_of_vector("ids", ids);
    if (on_device("ids", ids) != nullptr) {
      return load(ids, cu_seqlens, type_ids, position_ids, limits, tokens);
    }
    const auto span = [&](const char* name, const std::optional<Ints>& array) {
      if (!array) return std::span<const int32_t>();
      on_device(name, *array);
      const auto& host = std::get<IntArray>(*array);
      return std::span<const int32_t>(host.data(), static_cast<size_t>(host.size()));
    };
    const PackedTokens packed{.ids = span("ids", ids),
                              .cu_seqlens = span("cu_seqlens", cu_seqlens),
                              .type_ids = span("type_ids", type_ids),
                              .position_ids = span("position_ids", position_ids)};
    limits.max_tokens = tokens;
    limits.max_sequences = packed.num_sequences();
    check(packed, limits);
    const auto put = [&](const std::optional<Ints>& array) {
      return array ? put_ints(std::get<IntArray>(*array)) : nullptr;
    };
    return {put_batch(cu_seqlens, tokens), put(ids), put(type_ids), put(position_ids)};
  }

  /// Waits for the device, in calls that write into their arguments.
  void finish() { device_.synchronize(); }

  /// The result of a call, in a buffer of the call's own.
  py::object get(TensorView rows) {
    if (on_device_) {
      device_.synchronize();
      auto array = std::make_unique<std::shared_ptr<DeviceArray>>(
          std::make_shared<OwnedArray>(shared_, take_memory_of(rows), rows, stream_));
      auto capsule =
          py::object::steal(PyCapsule_New(array.get(), "DeviceArray", [](PyObject* self) {
            delete static_cast<std::shared_ptr<DeviceArray>*>(
                PyCapsule_GetPointer(self, "DeviceArray"));
          }));
      static_cast<void>(array.release());
      return capsule;
    }
    if (rows.dtype != DType::kFloat32) {
      const TensorView converted = matrix(rows.rows(), rows.columns(), DType::kFloat32);
      ops_.cast({.x = rows, .out = converted});
      rows = converted;
    }
    FloatArray host(rows.rows(), rows.columns());
    const DownloadScope downloads(device_);
    device_.download(host.mutable_data(), rows.data, static_cast<size_t>(host.nbytes()));
    device_.synchronize();
    return host;
  }

 private:
  DeviceIo& device_io() {
    if (DeviceIo* io = device_.io()) return *io;
    throw InvalidArgument(concat("device '", name_of(device_.device()),
                                 "' takes arrays in host memory, without a stream"));
  }

  /// Returns where an array lies on the device, or null if it lies on the host. Throws
  /// InvalidArgument if the other arrays lie elsewhere.
  template <class Array>
  const DeviceView* on_device(const char* name, const std::variant<DeviceView, Array>& array) {
    const auto* view = std::get_if<DeviceView>(&array);
    if ((view != nullptr) == on_device_) return view;
    throw InvalidArgument(concat(name, view == nullptr ? " is in host memory" : " is on a device",
                                 ", the first argument is not: expected all in one place"));
  }

  void* address(const char* name, const DeviceView& view, DType dtype) {
    if (view.dtype != name_of(dtype)) {
      throw InvalidArgument(concat(name, " is ", view.dtype, ", expected ", name_of(dtype)));
    }
    auto* data = reinterpret_cast<void*>(view.pointer);
    if (data != nullptr) device_io().check_pointer(name, data);
    return data;
  }

  /// Loads a batch that lies on the device, where a kernel checks it.
  Tokens load(const std::optional<Ints>& ids, const Ints& cu_seqlens,
              const std::optional<Ints>& type_ids, const std::optional<Ints>& position_ids,
              PackedLimits limits, int64_t tokens) {
    const auto from = [&](const char* name, const std::optional<Ints>& array) -> const int32_t* {
      if (!array) return nullptr;
      const DeviceView* view = on_device(name, *array);
      if (size_of_vector(name, *array) != tokens) {
        throw InvalidArgument(concat(name, ": expected a vector of ", tokens));
      }
      return static_cast<const int32_t*>(address(name, *view, DType::kInt32));
    };
    const auto to = [&](const int32_t* array, int64_t size) {
      return array == nullptr
                 ? nullptr
                 : static_cast<int32_t*>(allocate(static_cast<size_t>(size) * sizeof(int32_t)));
    };
    LoadBatchArgs args;
    args.from.num_tokens = limits.max_tokens = tokens;
    args.from.num_sequences = limits.max_sequences = size_of_vector("cu_seqlens", cu_seqlens) - 1;
    if (args.from.num_sequences < 0) throw InvalidArgument("cu_seqlens is empty");
    check_capacity(tokens, args.from.num_sequences, limits);
    const DeviceView* offsets = on_device("cu_seqlens", cu_seqlens);
    args.from.cu_seqlens =
        static_cast<const int32_t*>(address("cu_seqlens", *offsets, DType::kInt32));
    args.from.ids = from("ids", ids);
    args.from.type_ids = from("type_ids", type_ids);
    args.from.position_ids = from("position_ids", position_ids);
    args.limits = limits;
    args.cu_seqlens = to(args.from.cu_seqlens, limits.max_sequences + 1);
    args.counts = to(args.from.cu_seqlens, 2);
    args.ids = to(args.from.ids, tokens);
    args.type_ids = to(args.from.type_ids, tokens);
    args.position_ids = to(args.from.position_ids, tokens);
    const uint32_t none = 0;
    args.reported = static_cast<uint32_t*>(allocate(sizeof(none)));
    device_.upload(args.reported, &none, sizeof(none));
    args.run = 1;
    const auto shared = device_io().allocate_shared(sizeof(InputFinding));
    args.finding = static_cast<InputFinding*>(shared->data());
    device_io().load_batch(args);
    // Attention may start to read offsets while earlier kernels still run.
    device_.synchronize();
    check_finding(*args.finding, args.run, tokens, limits);
    return {{.num_tokens = tokens,
             .num_sequences = limits.max_sequences,
             .max_seqlen = std::min(tokens, limits.max_seqlen),
             .cu_seqlens = args.cu_seqlens},
            args.ids,
            args.type_ids,
            args.position_ids};
  }

  std::unique_ptr<DeviceMemory> take_memory_of(const TensorView& rows) {
    for (auto& memory : memory_) {
      if (memory != nullptr && memory->data() == rows.data) return std::move(memory);
    }
    return nullptr;
  }

  std::shared_ptr<SharedBackend> shared_;
  std::lock_guard<std::mutex> lock_;
  DeviceContext& device_;
  LinearPacker& packer_;
  Ops& ops_;
  LinearFormat format_;  // format of dense layers
  DType dtype_;          // dtype of matrices
  bool on_device_;
  StreamHandle stream_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

}  // namespace packhorse
