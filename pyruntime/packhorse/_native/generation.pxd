# The public C++ API of generation, as Cython sees it.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from packhorse._native.device cimport Device, DType, Int32Span
from packhorse._native.session cimport CMemoryPlan, PlannedAllocation, WeightSource


cdef extern from "packhorse/sampling.h" namespace "packhorse" nogil:
    cdef cppclass TokenMask:
        pass

    cdef enum class EarlyStopping:
        kFalse
        kTrue
        kNever

    cdef cppclass SequenceBias:
        vector[int32_t] ids
        float bias

    cdef cppclass LengthDecay:
        int64_t start
        double factor

    cdef cppclass AttentionHead:
        int32_t layer
        int32_t head

    cdef cppclass CTimestampRules "packhorse::TimestampRules":
        int32_t begin
        int32_t no_timestamps
        int32_t end_of_text
        optional[int64_t] max_initial

    cdef cppclass CSampling "packhorse::Sampling":
        string adapter
        optional[int64_t] max_new_tokens
        float temperature
        int64_t top_k
        float top_p
        float min_p
        float repetition_penalty
        float presence_penalty
        float frequency_penalty
        vector[pair[int32_t, float]] logit_bias
        vector[int32_t] allowed_ids
        vector[SequenceBias] sequence_bias
        vector[vector[int32_t]] bad_words_ids
        int64_t no_repeat_ngram_size
        int64_t encoder_no_repeat_ngram_size
        int64_t min_new_tokens
        vector[int32_t] suppress_tokens
        vector[int32_t] begin_suppress_tokens
        optional[int32_t] forced_bos_token_id
        vector[int32_t] forced_eos_token_id
        optional[LengthDecay] exponential_decay_length_penalty
        optional[CTimestampRules] timestamps
        cpp_bool filtered_logprobs
        shared_ptr[TokenMask] mask
        vector[int32_t] stop_ids
        cpp_bool ignore_eos
        optional[double] deadline_s
        optional[uint64_t] seed
        optional[int64_t] logprobs
        optional[int64_t] prompt_logprobs
        vector[AttentionHead] alignment_heads
        optional[int64_t] alignment_source
        optional[int64_t] draft_tokens
        int64_t cache_salt
        int64_t n
        int64_t num_beams
        float length_penalty
        EarlyStopping early_stopping
        float patience


cdef extern from "packhorse/generation.h" namespace "packhorse" nogil:
    cdef cppclass CDraftModel "packhorse::DraftModel":
        string spec_json
        const WeightSource* weights
        DType dtype

    cdef cppclass CGenerationOptions "packhorse::GenerationOptions":
        Device device
        DType dtype
        optional[int64_t] kv_tokens
        optional[DType] kv_cache_dtype
        int64_t max_tokens
        int64_t max_sequences
        int64_t max_queue
        cpp_bool prefix_cache
        int threads
        cpp_bool pin_threads
        optional[size_t] memory_limit
        vector[int32_t] eos_ids
        int64_t max_adapters
        int64_t max_adapter_rank
        int64_t draft_tokens
        optional[CDraftModel] draft_model

    cdef enum class FinishReason:
        kNone

    const char* name_of(FinishReason)

    cdef cppclass TokenLogprob:
        int32_t id
        float logprob

    cdef cppclass GeneratedSequence:
        vector[int32_t] ids
        vector[float] logprobs
        vector[TokenLogprob] top_logprobs
        float score
        FinishReason finish_reason
        string error

    cdef cppclass CPromptLogprobs "packhorse::PromptLogprobs":
        vector[float] logprobs
        vector[TokenLogprob] top

    cdef cppclass AlignmentWeights:
        vector[float] values
        int64_t source_tokens

    cdef cppclass GenerationUsage:
        int64_t prompt_tokens
        int64_t cached_prompt_tokens
        int64_t new_tokens
        int64_t drafted_tokens
        int64_t accepted_tokens

    cdef cppclass SourceFeatures:
        SourceFeatures()
        vector[float] values
        int64_t columns

    cdef cppclass CGenerationRequest "packhorse::GenerationRequest":
        vector[int32_t] next(size_t, double) except +
        cpp_bool wait(double) except +
        void cancel() except +
        size_t num_sequences()
        FinishReason finish_reason(size_t) except +
        GeneratedSequence result(size_t) except +
        CPromptLogprobs prompt_logprobs() except +
        AlignmentWeights alignment() except +
        GenerationUsage usage() except +

    cdef cppclass CGenerationMemoryPlan "packhorse::GenerationMemoryPlan"(CMemoryPlan):
        PlannedAllocation adapters
        PlannedAllocation kv_cache
        PlannedAllocation draft_weights
        PlannedAllocation draft_arena
        PlannedAllocation draft_kv_cache
        int64_t kv_tokens
        size_t bytes_per_token

    cdef cppclass CGenerationStats "packhorse::GenerationStats":
        int64_t queued
        int64_t running
        int64_t pages
        int64_t pages_used
        int64_t pages_cached
        int64_t pages_free
        int64_t steps
        int64_t computed_tokens
        int64_t new_tokens
        int64_t preemptions
        int64_t prefix_hit_tokens
        int64_t finished_requests
        int64_t drafted_tokens
        int64_t accepted_tokens

    cdef cppclass CGenerationSession "packhorse::GenerationSession":
        @staticmethod
        shared_ptr[CGenerationSession] load(const string&, const WeightSource&,
                                            const CGenerationOptions&) except +
        shared_ptr[CGenerationRequest] submit(Int32Span, const CSampling&, double,
                                              Int32Span) except +
        shared_ptr[CGenerationRequest] submit_features(
            Int32Span, const CSampling&, double, shared_ptr[const SourceFeatures]) except +
        vector[shared_ptr[CGenerationRequest]] submit_all(const vector[vector[int32_t]]&,
                                                          const CSampling&, double,
                                                          const vector[vector[int32_t]]&
                                                          ) except +
        void add_adapter(const string&, const WeightSource&) except +
        void remove_adapter(const string&) except +
        vector[string] adapters() except +
        const CGenerationMemoryPlan& memory_plan()
        CGenerationStats stats() except +
        int64_t max_context()
        int64_t vocab_size()
        int64_t max_source()
        int64_t frame_features()

    CGenerationMemoryPlan c_plan_generation "packhorse::plan_generation"(
        const string&, const CGenerationOptions&) except +


cdef extern from "packhorse/_native/generation.h" namespace "packhorse::python" nogil:
    cdef cppclass CMailbox "packhorse::python::Mailbox":
        CMailbox() except +
        int fd()
        void post(size_t) except +
        vector[size_t] take() except +

    void c_listen "packhorse::python::listen"(CGenerationRequest&, shared_ptr[CMailbox],
                                              size_t) except +
    void c_stop_listening "packhorse::python::stop_listening"(CGenerationRequest&) except +
    cdef cppclass OpenSession "packhorse::python::OpenSession":
        OpenSession()
        OpenSession(shared_ptr[CGenerationSession])
        CGenerationSession& operator*()

    void c_end_masks "packhorse::python::end_masks"()
    void c_forget_calls_of_masks "packhorse::python::forget_calls_of_masks"()


cdef extern from "packhorse/_native/generation.h" namespace "packhorse::python":
    shared_ptr[TokenMask] make_mask(PyObject*) except +
    shared_ptr[const SourceFeatures] source_features(object, int64_t) except +
