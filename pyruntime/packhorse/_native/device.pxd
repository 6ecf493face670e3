# Declarations for arrays that stay on a device, which several extension modules share.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t, uintptr_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "<span>" namespace "std" nogil:
    cdef cppclass Int32Span "std::span<const int32_t>":
        Int32Span()
        Int32Span(const int32_t*, size_t)
        const int32_t* data()
        size_t size()

    cdef cppclass FloatSpan "std::span<const float>":
        FloatSpan()
        FloatSpan(const float*, size_t)


cdef extern from "packhorse/types.h" namespace "packhorse" nogil:
    cdef cppclass DType:
        pass

    cdef cppclass Device:
        int index

    cdef cppclass TensorView:
        TensorView()
        void* data
        DType dtype
        int rank
        int64_t shape[4]
        int64_t row_stride

    DType parse_dtype(const string&) except +
    Device parse_device(const string&) except +
    string name_of(Device)
    const char* name_of_dtype "packhorse::name_of"(DType)


cdef extern from "packhorse/device_array.h" namespace "packhorse" nogil:
    cdef cppclass CDeviceArray "packhorse::DeviceArray":
        Device device()
        const TensorView& view()
        uintptr_t stream()
        void make_ready_on(uintptr_t) except +
        void read(float*) except +
        void check() except +

    cdef cppclass CDeviceTokens "packhorse::DeviceTokens":
        const int32_t* ids
        const int32_t* cu_seqlens
        const int32_t* type_ids
        const int32_t* position_ids
        int64_t num_tokens
        int64_t num_sequences
        Int32Span prediction_rows

    cdef cppclass CDevicePatches "packhorse::DevicePatches":
        const void* features
        DType dtype
        int64_t num_patches
        int64_t columns
        Int32Span grids


cdef extern from "packhorse/_native/arrays.h" namespace "packhorse":
    Int32Span int32_vector(object) except +
    vector[int32_t] int32_values(object) except +
    float* float_pointer(object) except +
    FloatSpan float_values(object) except +


cdef extern from "packhorse/_native/dlpack.h" namespace "packhorse::dlpack":
    cdef cppclass Tensor:
        void* data
        int32_t device_type
        int32_t device_id
        int32_t rank
        uint8_t type_code
        uint8_t type_bits
        uint16_t type_lanes
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset

    object make_capsule(const shared_ptr[CDeviceArray]&, cpp_bool)
    const Tensor* look_into(object) except NULL
    shared_ptr[const void] hold(object)


cdef class DeviceArray:
    cdef shared_ptr[CDeviceArray] array
    cdef CDeviceArray* _get(self) except NULL
    cdef _make_ready_on(self, uintptr_t stream)
