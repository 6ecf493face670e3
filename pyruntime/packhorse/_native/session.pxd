# Declares the public C++ API (runtime/include/packhorse) for Cython.
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libcpp cimport bool as cpp_bool
from libcpp.map cimport map as cpp_map
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from packhorse._native.device cimport (
    CDeviceArray,
    CDevicePatches,
    CDeviceTokens,
    Device,
    DType,
    FloatSpan,
    Int32Span,
    TensorView,
)


cdef extern from "packhorse/packed_tokens.h" namespace "packhorse" nogil:
    cdef cppclass CPackedTokens "packhorse::PackedTokens":
        Int32Span ids
        Int32Span cu_seqlens
        Int32Span type_ids
        Int32Span position_ids
        Int32Span prediction_rows
        FloatSpan features
        int64_t feature_columns


cdef extern from "packhorse/packed_patches.h" namespace "packhorse" nogil:
    cdef cppclass CPackedPatches "packhorse::PackedPatches":
        FloatSpan features
        int64_t columns
        Int32Span grids


cdef extern from "packhorse/_native/batch.h" namespace "packhorse":
    CPackedTokens copy_batch(const CPackedTokens&, vector[int32_t]&) except +


cdef extern from "packhorse/memory_plan.h" namespace "packhorse" nogil:
    cdef cppclass PlannedBuffer:
        string name
        size_t offset
        size_t bytes

    cdef cppclass PlannedAllocation:
        size_t bytes
        vector[PlannedBuffer] buffers

    cdef cppclass CMemoryPlan "packhorse::MemoryPlan":
        PlannedAllocation weights
        PlannedAllocation arena


cdef extern from "packhorse/cpu_profile.h" namespace "packhorse" nogil:
    void c_start_cpu_profile "packhorse::start_cpu_profile"()
    vector[pair[string, double]] c_stop_cpu_profile "packhorse::stop_cpu_profile"()


cdef extern from "packhorse/load_progress.h" namespace "packhorse" nogil:
    cdef cppclass LoadProgress:
        size_t done
        size_t total

    LoadProgress c_load_progress "packhorse::load_progress"()


cdef extern from "packhorse/_native/signals.h" namespace "packhorse::signals" nogil:
    cpp_bool on_main_thread()
    void begin_run()
    void watch(unsigned long)


cdef extern from "packhorse/weight_source.h" namespace "packhorse" nogil:
    cdef cppclass WeightSource:
        pass

    cdef cppclass BlockKind:
        pass

    BlockKind parse_block_kind(const string&) except +

    cdef cppclass TensorBlocks:
        const uint8_t* data
        BlockKind kind
        int rank
        int64_t[4] shape
        vector[int32_t] row_order

    cdef cppclass FileMapping:
        void* data
        size_t bytes
        string path

    unique_ptr[WeightSource] borrow_tensors(cpp_map[string, TensorView],
                                            cpp_map[string, TensorBlocks],
                                            const vector[FileMapping]&) except +
    unique_ptr[WeightSource] open_safetensors(const vector[string]&) except +
    unique_ptr[WeightSource] rename_tensors(unique_ptr[WeightSource],
                                            cpp_map[string, string]) except +


cdef extern from "packhorse/_native/tensors.h" namespace "packhorse" nogil:
    cdef cppclass MadeTensors(WeightSource):
        MadeTensors(unique_ptr[WeightSource], void*,
                    cpp_bool (*)(void*, const string&, TensorView&) except False,
                    const vector[string]&)


cdef extern from "packhorse/attention_algorithm.h" namespace "packhorse" nogil:
    cdef cppclass AttentionAlgorithm:
        pass

    AttentionAlgorithm parse_attention_algorithm(string, string) except +


cdef extern from "packhorse/session.h" namespace "packhorse" nogil:
    cdef cppclass SessionOptions:
        Device device
        DType dtype
        int64_t max_tokens
        int64_t max_sequences
        int threads
        cpp_bool pin_threads
        optional[size_t] memory_limit
        int output_slots
        int64_t max_predictions
        AttentionAlgorithm attention_algorithm

    cdef cppclass OutputNames "decltype(packhorse::kOutputNames)":
        size_t size()
        const char* operator[](size_t)

    const OutputNames kOutputNames

    cdef cppclass RunOutputs:
        float*& operator[](size_t)

    cdef cppclass DeviceOutputSet:
        cpp_bool& operator[](size_t)

    cdef cppclass DeviceOutputs:
        shared_ptr[CDeviceArray]& operator[](size_t)

    cdef cppclass OutputShape:
        string name
        cpp_bool per_token
        int64_t columns

    cdef cppclass CSession "packhorse::Session":
        @staticmethod
        shared_ptr[CSession] load(const string&, const WeightSource&,
                                  const SessionOptions&) except +
        void run(const CPackedTokens&, const RunOutputs&) except +
        void run(const CPackedPatches&, const RunOutputs&) except +
        void run(const CDeviceTokens&, const RunOutputs&, uintptr_t) except +
        void run(const CDevicePatches&, const RunOutputs&, uintptr_t) except +
        DeviceOutputs run_on_device(const CPackedTokens&, const DeviceOutputSet&,
                                    uintptr_t) except +
        DeviceOutputs run_on_device(const CDeviceTokens&, const DeviceOutputSet&, uintptr_t,
                                    shared_ptr[const void]) except +
        DeviceOutputs run_on_device(const CPackedPatches&, const DeviceOutputSet&,
                                    uintptr_t) except +
        DeviceOutputs run_on_device(const CDevicePatches&, const DeviceOutputSet&, uintptr_t,
                                    shared_ptr[const void]) except +
        uintptr_t stream()
        void wait_for(uintptr_t) except +
        vector[double] time_encoder(const CPackedTokens&, int, int) except +
        vector[string] explain(const CPackedTokens&) except +
        const CMemoryPlan& memory_plan()
        int64_t hidden_size()
        int64_t max_seqlen()
        vector[OutputShape] outputs()

    CMemoryPlan c_plan_memory "packhorse::plan_memory"(const string&,
                                                       const SessionOptions&) except +
    vector[string] c_available_devices "packhorse::available_devices"() except +
    const char* c_version "packhorse::version"()


cdef class Weights:
    cdef unique_ptr[WeightSource] source
    cdef object maker  # makes tensors for `source`
    cdef list held  # arrays that `source` reads


cdef allocation_of(const PlannedAllocation& plan)
