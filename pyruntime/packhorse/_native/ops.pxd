# The operators of operators.h, as Cython sees them. What a call returns is an array, a tuple of
# arrays, or a capsule that holds a DeviceArray (packhorse._native.device.from_native).
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "packhorse/_native/arrays.h" namespace "packhorse":
    void set_maker(object)


cdef extern from "packhorse/_native/operators.h" namespace "packhorse":
    object make_device_view(uintptr_t, vector[int64_t], string) except +
    optional[T] maybe[T](object) except +

    cdef cppclass FloatArray:
        FloatArray()
        FloatArray(object) except +

    cdef cppclass IntArray:
        IntArray()
        IntArray(object) except +

    cdef cppclass LongArray:
        LongArray()
        LongArray(object) except +

    cdef cppclass Floats:
        Floats()
        Floats(object) except +

    cdef cppclass Ints:
        Ints()
        Ints(object) except +

    cdef cppclass Linear:
        Linear()
        Linear(Floats, optional[Floats])

    cdef cppclass Norm:
        Norm()
        Norm(Floats, optional[Floats], float)

    cdef cppclass PageArrays:
        PageArrays()
        Floats keys
        Floats values
        optional[Floats] key_scales
        optional[Floats] value_scales

    cdef cppclass ConvolvePages:
        ConvolvePages()
        FloatArray rows
        int64_t slots
        IntArray table
        IntArray kv_lens

    cdef cppclass COperators "packhorse::Operators":
        COperators(string, string, int, string, cpp_bool) except +
        uintptr_t stream() except +
        void wait_for(uintptr_t) except +
        cpp_bool interleaves_heads() except +
        object gemm(optional[uintptr_t], Floats, Floats, optional[Floats], string,
                    optional[Floats], optional[Norm]) except +
        object gemm_groupwise(optional[uintptr_t], Floats, Floats, Floats, optional[Floats],
                              optional[Floats], int, int, string, cpp_bool,
                              optional[Floats], optional[IntArray]) except +
        object feed_forward(optional[uintptr_t], Floats, Linear, Linear, string, cpp_bool,
                            optional[Floats], optional[Norm]) except +
        object qkv_rope(Floats, Floats, optional[Floats], Ints, optional[IntArray], int, int,
                        int, optional[Floats], optional[Norm], optional[Norm]) except +
        object rope(Floats, Ints, optional[IntArray], int, int, Floats) except +
        object append_kv_cache(optional[uintptr_t], PageArrays, Floats, Floats, IntArray, IntArray,
                               IntArray, int) except +
        object paged_attention(optional[uintptr_t], Floats, PageArrays, IntArray, IntArray,
                               IntArray, int, int, float, cpp_bool, int, float,
                               optional[Floats], optional[Floats], optional[Floats],
                               optional[Floats]) except +
        object attention(optional[uintptr_t], Floats, Floats, Floats, Ints, Ints, int, int, float,
                         cpp_bool, int, int, optional[Floats], optional[Floats], int, cpp_bool,
                         optional[Floats], optional[Floats], int) except +
        object norm(optional[uintptr_t], Floats, Norm, optional[Floats], string) except +
        object embed(optional[uintptr_t], Ints, Ints, Floats, optional[Floats], optional[Floats],
                     optional[Ints], optional[Ints], int64_t, optional[Norm]) except +
        object log_softmax(optional[uintptr_t], Floats) except +
        object pool(optional[uintptr_t], Floats, Ints, string, cpp_bool) except +
        object sparse_pool(optional[uintptr_t], Floats, Floats, optional[Floats], Ints, cpp_bool,
                           cpp_bool) except +
        object add_lora(Floats, Floats, Floats, Floats, IntArray, IntArray, optional[IntArray],
                        int) except +
        object cca(FloatArray, Ints, optional[IntArray], vector[FloatArray],
                   vector[int32_t], optional[Floats], optional[ConvolvePages]) except +
        object sample(FloatArray, FloatArray, IntArray, LongArray, IntArray, IntArray, FloatArray,
                      optional[IntArray], optional[IntArray], int) except +
