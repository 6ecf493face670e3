# cython: language_level=3, boundscheck=False, wraparound=False
"""Arrays that stay on a device, and arrays of other libraries there, exchanged by the protocols
that all these libraries share."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uintptr_t
from libcpp.memory cimport shared_ptr

import numpy as np

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_TYPESTR = {"float32": "<f4", "float16": "<f2"}


def read_capsule(capsule):
    """Returns (address, shape, dtype name, whether it is row-major) of a DLPack tensor. The capsule
    keeps the tensor alive."""
    cdef const Tensor* tensor = look_into(capsule)
    cdef int64_t size = 1
    cdef bint contiguous = True
    for i in reversed(range(tensor.rank)):
        if tensor.strides != NULL and tensor.shape[i] != 1 and tensor.strides[i] != size:
            contiguous = False
        size *= tensor.shape[i]
    kind = _KINDS.get(tensor.type_code, f"DLPack type {tensor.type_code} of ")
    name = f"{kind}{tensor.type_bits}" + (f"x{tensor.type_lanes}" * (tensor.type_lanes != 1))
    shape = tuple([tensor.shape[i] for i in range(tensor.rank)])
    address = <uintptr_t> tensor.data + tensor.byte_offset if tensor.data != NULL else 0
    return address, shape, name, contiguous or size == 0


cdef class DeviceArray:
    """A result in device memory, for any library that accepts DLPack or the CUDA array interface.

    The memory is leased. Another run may use it when all arrays of this run, and everything that
    consumers made of them without a copy, have been deleted or released.
    """

    cdef CDeviceArray* _get(self) except NULL:
        if self.array.get() == NULL:
            raise RuntimeError("this array was released")
        return self.array.get()

    @property
    def shape(self):
        cdef const TensorView* view = &self._get().view()
        return tuple([view.shape[i] for i in range(view.rank)])

    @property
    def ndim(self):
        return self._get().view().rank

    @property
    def dtype(self):
        """"float16", "bfloat16" or "float32"."""
        return name_of_dtype(self._get().view().dtype).decode()

    @property
    def device(self):
        return name_of(self._get().device()).decode()

    def __dlpack_device__(self):
        return 2, self._get().device().index

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Returns a DLPack capsule of the array.

        `stream` is the consumer's stream, on which the array will be complete: an integer as DLPack
        numbers streams, None for the legacy default stream, or -1 for no synchronisation. The
        stream must live as long as the consumer's array, because the memory is not reused before
        the stream's work is done.
        """
        if copy:
            raise BufferError("a device array is not copied; take it without copy=True")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"the array lies on DLPack device {self.__dlpack_device__()}, not {dl_device}: "
                "numpy() takes it to the host"
            )
        handle = 1 if stream is None else int(stream)
        if handle == 0 or handle < -1:
            raise ValueError(f"stream is {stream}, expected -1, 1, 2 or a handle")
        if handle != -1:
            self._make_ready_on(handle)
        self._get()
        return make_capsule(self.array, max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self):
        """The array for the CUDA array interface. It is complete on the stream that the dict names:
        the run's stream, or the legacy default stream."""
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"the CUDA array interface has no {self.dtype}: use DLPack")
        cdef uintptr_t stream = self._get().stream()
        self._make_ready_on(stream)
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (<uintptr_t> self._get().view().data if 0 not in self.shape else 0, False),
            "strides": None,
            "stream": stream,
            "version": 3,
        }

    def __array__(self, *_args, **_options):
        raise TypeError("a device array does not become a host array by itself: use numpy()")

    def numpy(self):
        """A copy in host memory, as float32. Raises ValueError as `check` does."""
        cdef shared_ptr[CDeviceArray] array = self.array
        self._get()
        result = np.empty(self.shape, np.float32)
        cdef float* to = <float*> <uintptr_t> result.ctypes.data
        with nogil:
            array.get().read(to)
        return result

    def check(self):
        """Waits for the run. Raises ValueError if the device found an error in the batch, saying
        what it found."""
        cdef shared_ptr[CDeviceArray] array = self.array
        self._get()
        with nogil:
            array.get().check()

    def release(self):
        """Releases the memory. It is free when consumers that hold it have released it, too."""
        cdef shared_ptr[CDeviceArray] array
        array.swap(self.array)
        with nogil:
            array.reset()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.release()

    def __dealloc__(self):
        with nogil:
            self.array.reset()

    def __repr__(self):
        if self.array.get() == NULL:
            return "DeviceArray(released)"
        return f"DeviceArray({self.dtype}{list(self.shape)} on {self.device})"

    cdef _make_ready_on(self, uintptr_t stream):
        cdef shared_ptr[CDeviceArray] array = self.array
        self._get()
        with nogil:
            array.get().make_ready_on(stream)


def from_native(capsule):
    """Makes a DeviceArray from a capsule that holds a std::shared_ptr to a C++ DeviceArray."""
    cdef DeviceArray result = DeviceArray()
    result.array = (<shared_ptr[CDeviceArray]*> PyCapsule_GetPointer(capsule, b"DeviceArray"))[0]
    return result
