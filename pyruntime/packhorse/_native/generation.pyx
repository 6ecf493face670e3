# cython: language_level=3, boundscheck=False, wraparound=False
"""The C++ engine of generation, one to one: arguments converted, the GIL released."""

import os
import threading
import time

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cython.operator cimport dereference as deref
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from packhorse._native.device cimport (Int32Span, float_pointer, int32_values, parse_device,
                                       parse_dtype)
from packhorse._native.generation cimport *
from packhorse._native.session cimport Weights, allocation_of

import numpy as np

from packhorse.dtypes import native_dtype

cdef double LOOK_S = 0.05  # seconds between two looks for signals, while the main thread waits


cdef CGenerationOptions _options(given) except *:
    """The options of `given`, a packhorse.load_options.LoadOptions of a generation session."""
    cdef CGenerationOptions options
    options.device = parse_device(given.device.encode())
    options.dtype = parse_dtype(native_dtype(given.dtype, given.device).encode())
    if given.kv_tokens is not None:
        options.kv_tokens = <int64_t> given.kv_tokens
    if given.kv_cache_dtype is not None:
        options.kv_cache_dtype = <DType> parse_dtype((<str> given.kv_cache_dtype).encode())
    options.max_tokens = given.max_tokens
    options.max_sequences = given.max_sequences
    options.max_queue = given.max_queue
    options.prefix_cache = given.prefix_cache
    options.threads = 0 if given.threads is None else given.threads
    options.pin_threads = given.pin_threads
    if given.memory_limit is not None:
        options.memory_limit = <size_t> given.memory_limit
    options.max_adapters = given.max_adapters
    options.max_adapter_rank = given.max_adapter_rank
    if given.draft is not None:
        options.draft_tokens = given.draft_tokens
    return options


cdef CDraftModel _draft_model(tuple draft, Weights weights) except *:
    """`draft`: its spec, its dtype, and what `weights` were made of."""
    cdef CDraftModel model
    model.spec_json = (<str> draft[0]).encode()
    model.dtype = parse_dtype((<str> draft[1]).encode())
    model.weights = weights.source.get() if weights is not None else NULL
    return model


cdef _set_rules(CSampling& sampling, given):
    cdef SequenceBias biased
    for ids, bias in given.sequence_bias:
        biased.ids = list(ids)
        biased.bias = bias
        sampling.sequence_bias.push_back(biased)
    sampling.bad_words_ids = [list(ids) for ids in given.bad_words_ids]
    sampling.no_repeat_ngram_size = given.no_repeat_ngram_size
    sampling.encoder_no_repeat_ngram_size = given.encoder_no_repeat_ngram_size
    sampling.min_new_tokens = given.min_new_tokens
    sampling.suppress_tokens = list(given.suppress_tokens)
    sampling.begin_suppress_tokens = list(given.begin_suppress_tokens)
    if given.forced_bos_token_id is not None:
        sampling.forced_bos_token_id = <int32_t> given.forced_bos_token_id
    sampling.forced_eos_token_id = list(given.forced_eos_token_id)
    cdef CTimestampRules timestamps
    if given.timestamps is not None:
        timestamps.begin = given.timestamps.begin
        timestamps.end_of_text = given.timestamps.end_of_text
        if given.timestamps.no_timestamps is not None:
            timestamps.no_timestamps = given.timestamps.no_timestamps
        else:
            timestamps.no_timestamps = -1
        if given.timestamps.max_initial is not None:
            timestamps.max_initial = <int64_t> given.timestamps.max_initial
        sampling.timestamps = timestamps
    sampling.filtered_logprobs = given.filtered_logprobs
    cdef LengthDecay decay
    if given.exponential_decay_length_penalty is not None:
        decay.start, decay.factor = given.exponential_decay_length_penalty
        sampling.exponential_decay_length_penalty = decay


cdef CSampling _sampling(given) except *:
    """`given`: packhorse.Sampling."""
    cdef CSampling sampling
    if given.adapter is not None:
        sampling.adapter = given.adapter.encode()
    if given.max_new_tokens is not None:
        sampling.max_new_tokens = <int64_t> given.max_new_tokens
    sampling.temperature = given.temperature
    sampling.top_k = given.top_k
    sampling.top_p = given.top_p
    sampling.min_p = given.min_p
    sampling.repetition_penalty = given.repetition_penalty
    sampling.presence_penalty = given.presence_penalty
    sampling.frequency_penalty = given.frequency_penalty
    sampling.logit_bias = list(given.logit_bias.items())
    sampling.allowed_ids = list(given.allowed_ids or ())
    _set_rules(sampling, given)
    if given.mask is not None:
        sampling.mask = make_mask(<PyObject*> given.mask)
    sampling.stop_ids = list(given.stop_ids)
    sampling.ignore_eos = given.ignore_eos
    if given.deadline_s is not None:
        sampling.deadline_s = <double> given.deadline_s
    if given.seed is not None:
        sampling.seed = <uint64_t> given.seed
    if given.logprobs is not None:
        sampling.logprobs = <int64_t> given.logprobs
    if given.prompt_logprobs is not None:
        sampling.prompt_logprobs = <int64_t> given.prompt_logprobs
    cdef AttentionHead head
    for layer, number in given.alignment_heads:
        head.layer = layer
        head.head = number
        sampling.alignment_heads.push_back(head)
    if given.alignment_source is not None:
        sampling.alignment_source = <int64_t> given.alignment_source
    if given.draft_tokens is not None:
        sampling.draft_tokens = <int64_t> given.draft_tokens
    sampling.cache_salt = given.cache_salt
    sampling.n = given.n
    sampling.num_beams = given.num_beams
    sampling.length_penalty = given.length_penalty
    if given.early_stopping == "never":
        sampling.early_stopping = EarlyStopping.kNever
    elif given.early_stopping:
        sampling.early_stopping = EarlyStopping.kTrue
    else:
        sampling.early_stopping = EarlyStopping.kFalse
    sampling.patience = given.patience
    return sampling


cdef list _pairs(const vector[TokenLogprob]& top):
    cdef size_t i
    return [(top[i].id, top[i].logprob) for i in range(top.size())]


cdef _plan(const CGenerationMemoryPlan& plan):
    return (allocation_of(plan.weights), allocation_of(plan.arena), allocation_of(plan.adapters),
            allocation_of(plan.kv_cache), allocation_of(plan.draft_weights),
            allocation_of(plan.draft_arena), allocation_of(plan.draft_kv_cache), plan.kv_tokens,
            plan.bytes_per_token)


def plan_generation(str spec_json, given, tuple draft=None):
    """The plan of a model that is not loaded; `given` is LoadOptions, and `draft` the spec
    and the dtype of the draft model."""
    cdef CGenerationOptions options = _options(given)
    if draft is not None:
        options.draft_model = _draft_model(draft, None)
    cdef string spec = spec_json.encode()
    cdef CGenerationMemoryPlan plan
    with nogil:
        plan = c_plan_generation(spec, options)
    return _plan(plan)


def end_masks():
    """Forbids calls of masks, and waits for those that run. Called before the interpreter ends."""
    with nogil:
        c_end_masks()


def _forget_calls_of_masks():
    c_forget_calls_of_masks()


os.register_at_fork(after_in_child=_forget_calls_of_masks)


cdef class NativeMailbox:
    """Collects the numbers of requests that have news."""

    cdef shared_ptr[CMailbox] mailbox

    def __cinit__(self):
        self.mailbox = make_shared[CMailbox]()

    @property
    def fd(self):
        """A file descriptor that can be read while there are news."""
        return deref(self.mailbox).fd()

    def take(self):
        """Numbers of requests that had news since the last time."""
        return deref(self.mailbox).take()


cdef class NativeRequest:
    """Owner of one C++ request. `packhorse.GenerationRequest` is the class for people."""

    cdef shared_ptr[CGenerationRequest] request

    def next(self, size_t sequence, timeout_s=None):
        """New tokens of a sequence; none where it has ended, or after `timeout_s` seconds."""
        cdef vector[int32_t] ids
        cdef double slice_s
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            slice_s = self._slice(until)
            with nogil:
                ids = deref(self.request).next(sequence, slice_s)
            if not ids.empty():
                return ids
            if self.finish_reason(sequence):
                # It may have ended, with more tokens, after `next` gave up.
                return deref(self.request).next(sequence, 0)
            PyErr_CheckSignals()
            if until is not None and time.monotonic() >= until:
                return []

    def wait(self, timeout_s=None):
        """Waits up to `timeout_s` seconds. True if all sequences have ended."""
        cdef cpp_bool done
        cdef double slice_s
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            slice_s = self._slice(until)
            with nogil:
                done = deref(self.request).wait(slice_s)
            if done:
                return True
            PyErr_CheckSignals()
            if until is not None and time.monotonic() >= until:
                return False

    cdef double _slice(self, until) except? -1:
        """Seconds to wait before the next look for signals, which the main thread handles."""
        cdef double left = 1e9 if until is None else max(0.0, until - time.monotonic())
        cdef bint is_main = threading.get_ident() == threading.main_thread().ident
        return min(LOOK_S, left) if is_main else left

    def cancel(self):
        with nogil:
            deref(self.request).cancel()

    @property
    def num_sequences(self):
        return deref(self.request).num_sequences()

    def finish_reason(self, size_t sequence):
        return name_of(deref(self.request).finish_reason(sequence)).decode()

    def result(self, size_t sequence):
        """(ids, logprobs, top_logprobs in one list, score, finish reason, error)"""
        cdef GeneratedSequence found
        with nogil:
            found = deref(self.request).result(sequence)
        return (found.ids, found.logprobs, _pairs(found.top_logprobs), found.score,
                name_of(found.finish_reason).decode(), found.error.decode(errors="replace"))

    def prompt_logprobs(self):
        """(logprobs, top in one list)"""
        cdef CPromptLogprobs found
        with nogil:
            found = deref(self.request).prompt_logprobs()
        return found.logprobs, _pairs(found.top)

    def alignment(self):
        """(weights in one array, float32, tokens of the source)"""
        cdef AlignmentWeights found
        with nogil:
            found = deref(self.request).alignment()
        weights = np.empty(found.values.size(), np.float32)
        if not found.values.empty():
            memcpy(float_pointer(weights), found.values.data(), found.values.size() * sizeof(float))
        return weights, found.source_tokens

    def usage(self):
        """(prompt tokens, those of them that were cached, new tokens, drafts, accepted ones)"""
        cdef GenerationUsage found = deref(self.request).usage()
        return (found.prompt_tokens, found.cached_prompt_tokens, found.new_tokens,
                found.drafted_tokens, found.accepted_tokens)

    def listen(self, NativeMailbox mailbox not None, size_t number):
        """Posts news to the mailbox under this number from now on."""
        with nogil:
            c_listen(deref(self.request), mailbox.mailbox, number)

    def stop_listening(self):
        with nogil:
            c_stop_listening(deref(self.request))


cdef class NativeGenerationSession:
    """Owner of one C++ session. `packhorse.GenerationSession` is the class for people."""

    cdef shared_ptr[CGenerationSession] session  # null once it is closed
    cdef readonly int64_t max_context
    cdef readonly int64_t vocab_size
    cdef readonly int64_t max_source
    cdef readonly int64_t frame_features

    @staticmethod
    def load(str spec_json, list files, dict names, tensors, given, eos_ids=(),
             tuple draft=None):
        """Loads a session. Weights are those of `Weights`, and `given` is a LoadOptions. `eos_ids`:
        tokens that end a sequence. `draft`: spec, dtype, files, names and tensors of the draft
        model."""
        cdef NativeGenerationSession result = NativeGenerationSession()
        cdef CGenerationOptions options = _options(given)
        options.eos_ids = list(eos_ids)
        cdef string spec = spec_json.encode()
        cdef Weights weights = Weights(files, names, tensors)
        cdef Weights draft_weights
        if draft is not None:
            draft_weights = Weights(*draft[2:])
            options.draft_model = _draft_model(draft, draft_weights)
        with nogil:
            result.session = CGenerationSession.load(spec, deref(weights.source), options)
        result.max_context = deref(result.session).max_context()
        result.vocab_size = deref(result.session).vocab_size()
        result.max_source = deref(result.session).max_source()
        result.frame_features = deref(result.session).frame_features()
        return result

    cdef OpenSession _open(self) except *:
        """The session for one call, which keeps it though another thread may close it."""
        self.check_open()
        return OpenSession(self.session)

    def check_open(self):
        if self.session.get() == NULL:
            raise RuntimeError("this session was closed, or never loaded: load another one")

    @property
    def closed(self):
        return self.session.get() == NULL

    def close(self):
        """Ends all requests."""
        cdef shared_ptr[CGenerationSession] session
        session.swap(self.session)
        with nogil:
            session.reset()

    def __dealloc__(self):
        with nogil:  # the engine's thread may need the lock before it ends
            self.session.reset()

    def submit(self, ids not None, sampling, double timeout_s, source=None):
        """`sampling`: packhorse.Sampling. `source`: what the encoder reads, if there is one."""
        cdef NativeRequest request = NativeRequest()
        cdef CSampling settings = _sampling(sampling)
        cdef vector[int32_t] held = int32_values(ids)  # another thread may write to `ids`
        cdef vector[int32_t] held_source
        if source is not None:
            held_source = int32_values(source)
        cdef Int32Span prompt = Int32Span(held.data(), held.size())
        cdef Int32Span read = Int32Span(held_source.data(), held_source.size())
        cdef OpenSession session = self._open()
        with nogil:
            request.request = deref(session).submit(prompt, settings, timeout_s, read)
        return request

    def submit_features(self, ids not None, sampling, double timeout_s, features not None):
        """As `submit`, with frames of audio, float32 [frames, filters], in place of a source."""
        cdef NativeRequest request = NativeRequest()
        cdef CSampling settings = _sampling(sampling)
        cdef vector[int32_t] held = int32_values(ids)
        cdef shared_ptr[const SourceFeatures] frames = source_features(features, features.shape[1])
        cdef Int32Span prompt = Int32Span(held.data(), held.size())
        cdef OpenSession session = self._open()
        with nogil:
            request.request = deref(session).submit_features(prompt, settings, timeout_s, frames)
        return request

    def submit_all(self, list prompts, sampling, double timeout_s, submitted_to, sources=()):
        """Submits several prompts at once, and appends their requests to `submitted_to`, before an
        interrupt can be raised in the caller, who is to cancel them then. `sources`: one for each
        prompt, or none."""
        cdef CSampling settings = _sampling(sampling)
        cdef vector[vector[int32_t]] ids
        for one in prompts:
            ids.push_back(int32_values(one))
        cdef vector[vector[int32_t]] read
        for one in sources:
            read.push_back(int32_values(one))
        cdef OpenSession session = self._open()
        cdef vector[shared_ptr[CGenerationRequest]] submitted
        with nogil:
            submitted = deref(session).submit_all(ids, settings, timeout_s, read)
        cdef NativeRequest request
        for i in range(submitted.size()):
            request = NativeRequest()
            request.request = submitted[i]
            submitted_to.append(request)

    def add_adapter(self, str name, dict tensors):
        """`tensors`: as of NativeSession.load, under the names of the C++ library."""
        cdef string named = name.encode()
        cdef Weights weights = Weights([], {}, tensors)
        cdef OpenSession session = self._open()
        with nogil:
            deref(session).add_adapter(named, deref(weights.source))

    def remove_adapter(self, str name):
        cdef OpenSession session = self._open()
        deref(session).remove_adapter(name.encode())

    def adapters(self):
        cdef OpenSession session = self._open()
        return [name.decode() for name in deref(session).adapters()]

    def mailbox(self):
        return NativeMailbox()

    def memory_plan(self):
        """(weights, arena, adapters, cache of keys and values; weights, arena and cache of the
        draft model; tokens of the cache, bytes of a token)"""
        cdef OpenSession session = self._open()
        return _plan(deref(session).memory_plan())

    def stats(self):
        cdef OpenSession session = self._open()
        cdef CGenerationStats found
        with nogil:
            found = deref(session).stats()
        return {
            "queued": found.queued,
            "running": found.running,
            "pages": found.pages,
            "pages_used": found.pages_used,
            "pages_cached": found.pages_cached,
            "pages_free": found.pages_free,
            "steps": found.steps,
            "computed_tokens": found.computed_tokens,
            "new_tokens": found.new_tokens,
            "preemptions": found.preemptions,
            "prefix_hit_tokens": found.prefix_hit_tokens,
            "finished_requests": found.finished_requests,
            "drafted_tokens": found.drafted_tokens,
            "accepted_tokens": found.accepted_tokens,
        }
