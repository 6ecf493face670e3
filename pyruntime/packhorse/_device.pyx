# cython: language_level=3, boundscheck=False, wraparound=False
"""Arrays that stay on a device, and those of others there, by the protocols all libraries share."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uintptr_t
from libcpp.memory cimport shared_ptr

import numpy as np

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_TYPESTR = {"float32": "<f4", "float16": "<f2"}


def read_capsule(capsule):
    """(address, shape, dtype name, is row-major) of a DLPack tensor; the capsule keeps it."""
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
    """A result in a device's memory, for any library that takes DLPack or the CUDA array interface.

    Its memory is leased: it is another run's again when the arrays of the run, and everything that
    consumers made of them without a copy, are gone or released.
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
        """`stream`: the consumer's, which finds the array complete: an integer as DLPack counts
        them, None for the legacy default stream, -1 for no order. It must live as long as the
        consumer's array does: the memory is not written before the stream's work is done."""
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
        """Complete on the stream named there: the run's, or the legacy default stream."""
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
        """Waits for the run. Raises ValueError naming what the device found wrong in its batch."""
        cdef shared_ptr[CDeviceArray] array = self.array
        self._get()
        with nogil:
            array.get().check()

    def release(self):
        """Gives the memory back, once consumers that hold it have let go too."""
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
    """A DeviceArray of a capsule with a std::shared_ptr to one."""
    cdef DeviceArray result = DeviceArray()
    result.array = (<shared_ptr[CDeviceArray]*> PyCapsule_GetPointer(capsule, b"DeviceArray"))[0]
    return result
