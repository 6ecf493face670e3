# cython: language_level=3, boundscheck=False, wraparound=False
"""The C++ session, one to one: arguments converted, the GIL released, nothing decided here."""

import os
import threading

from cython.operator cimport dereference as deref
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp.utility cimport move

from packhorse._device cimport DeviceArray, hold, parse_device, parse_dtype
from packhorse._session cimport *


cdef Int32Span _span(const int32_t[::1] values):
    if values is None or values.shape[0] == 0:
        return Int32Span()
    return Int32Span(&values[0], values.shape[0])


cdef SessionOptions _options(given) except *:
    """`given`: packhorse.options.SessionOptions."""
    cdef SessionOptions options
    options.device = parse_device(given.device.encode())
    options.dtype = parse_dtype(given.dtype.encode())
    options.max_tokens = given.max_tokens
    options.max_sequences = given.max_sequences
    options.threads = 0 if given.threads is None else given.threads
    options.pin_threads = given.pin_threads
    options.output_slots = given.output_slots
    options.max_predictions = given.max_predictions
    options.attention_algorithm = parse_attention_algorithm(given.attention_algorithm.encode(),
                                                            b"attention_algorithm")
    if given.memory_limit is not None:
        if given.memory_limit < 0:
            raise ValueError(f"memory_limit is {given.memory_limit}, expected bytes from 0 on")
        options.memory_limit = <size_t> given.memory_limit
    return options


cdef cpp_map[string, TensorView] _views(tensors) except *:
    """{name: (array, dtype name)}: the arrays are C-contiguous and stay alive with the caller."""
    cdef cpp_map[string, TensorView] views
    cdef TensorView view
    for name, (array, dtype) in tensors.items():
        if array.ndim < 1 or array.ndim > 4:
            raise ValueError(f"tensor '{name}' has {array.ndim} dimensions, expected 1 to 4")
        view.data = <void*> <uintptr_t> array.ctypes.data
        view.dtype = parse_dtype(dtype.encode())
        view.rank = array.ndim
        for i in range(array.ndim):
            view.shape[i] = array.shape[i]
        view.row_stride = array.size // max(1, array.shape[0])
        views[name.encode()] = view
    return views


cdef unique_ptr[WeightSource] weight_source(list files, dict names, tensors) except *:
    """From `tensors` ({name: (array, dtype)}) or, if None, safetensors `files`; `names` maps ours
    to theirs."""
    cdef vector[string] paths = [str(path).encode() for path in files]
    cdef cpp_map[string, string] theirs = {a.encode(): b.encode() for a, b in names.items()}
    cdef cpp_map[string, TensorView] views
    cdef bint in_memory = tensors is not None
    cdef unique_ptr[WeightSource] source
    if in_memory:
        views = _views(tensors)
    with nogil:
        if in_memory:
            source = borrow_tensors(views)
        else:
            source = open_safetensors(paths)
        if not theirs.empty():
            source = rename_tensors(move(source), theirs)
    return move(source)


cdef allocation_of(const PlannedAllocation& plan):
    cdef size_t i
    return plan.bytes, [
        (plan.buffers[i].name.decode(), plan.buffers[i].offset, plan.buffers[i].bytes)
        for i in range(plan.buffers.size())
    ]


cdef _plan(const CMemoryPlan& plan):
    return allocation_of(plan.weights), allocation_of(plan.arena)


cdef float* _pointer(array) except? NULL:
    return <float*> <uintptr_t> array.ctypes.data if array is not None else NULL


cdef CPackedTokens _host_batch(const int32_t[::1] ids, const int32_t[::1] cu_seqlens,
                               const int32_t[::1] type_ids, const int32_t[::1] position_ids,
                               const int32_t[::1] rows):
    cdef CPackedTokens batch
    batch.ids = _span(ids)
    batch.cu_seqlens = _span(cu_seqlens)
    batch.type_ids = _span(type_ids)
    batch.position_ids = _span(position_ids)
    batch.prediction_rows = _span(rows)
    return batch


cdef const int32_t* _address(value) except? NULL:
    return <const int32_t*> <uintptr_t> value


cdef CDeviceTokens _device_batch(batch, const int32_t[::1] rows) except *:
    """(ids, cu_seqlens, type_ids, position_ids, T, B): addresses, 0 where there is none."""
    cdef CDeviceTokens tokens
    tokens.ids = _address(batch[0])
    tokens.cu_seqlens = _address(batch[1])
    tokens.type_ids = _address(batch[2])
    tokens.position_ids = _address(batch[3])
    tokens.num_tokens, tokens.num_sequences = batch[4], batch[5]
    tokens.prediction_rows = _span(rows)
    return tokens


cdef DeviceOutputSet _wanted(names) except *:
    cdef DeviceOutputSet wanted
    cdef size_t i
    for i in range(kOutputNames.size()):
        wanted[i] = kOutputNames[i].decode() in names
    return wanted


cdef dict _device_arrays(DeviceOutputs& outputs):
    cdef DeviceArray array
    cdef size_t i
    result = {}
    for i in range(kOutputNames.size()):
        if outputs[i].get() != NULL:
            array = DeviceArray()
            array.array = outputs[i]
            result[kOutputNames[i].decode()] = array
    return result


cdef RunOutputs _host_outputs(arrays) except *:
    """{name: writable C-contiguous float32 array of the right size}"""
    cdef RunOutputs outputs
    cdef size_t i
    for i in range(kOutputNames.size()):
        outputs[i] = _pointer(arrays.get(kOutputNames[i].decode()))
    return outputs


cdef class NativeSession:
    """Owner of one C++ session. `packhorse.Session` is the class for people."""

    cdef shared_ptr[CSession] session  # null once it is closed
    cdef bint interruptible  # whether a run of the main thread is under way
    cdef public int64_t hidden_size
    cdef public int64_t max_seqlen
    cdef public int device_index  # of CUDA; -1 on the CPU
    cdef public dict outputs  # {name: (whether per token, columns)}, what the model has

    @staticmethod
    def load(str spec_json, list files, dict names, tensors, given):
        """Weights: as of `weight_source`. `given` is SessionOptions."""
        cdef NativeSession result = NativeSession()
        cdef SessionOptions options = _options(given)
        cdef string spec = spec_json.encode()
        cdef unique_ptr[WeightSource] source = weight_source(files, names, tensors)
        cdef vector[OutputShape] shapes
        cdef size_t i
        with nogil:
            result.session = CSession.load(spec, deref(source), options)
        result.device_index = options.device.index if deref(result.session).stream() else -1
        result.hidden_size = deref(result.session).hidden_size()
        result.max_seqlen = deref(result.session).max_seqlen()
        shapes = deref(result.session).outputs()
        result.outputs = {
            shapes[i].name.decode(): (shapes[i].per_token, shapes[i].columns)
            for i in range(shapes.size())
        }
        return result

    cdef shared_ptr[CSession] _open(self) except *:
        """The session for one call, which keeps it though another thread may close it."""
        self.check_open()
        return self.session

    cdef _begin(self):
        """Before a run that may let a handler of a signal run: that one must not begin another, for
        which it would wait forever."""
        if on_main_thread():
            if self.interruptible:
                raise RuntimeError("a signal handler ran the session that it interrupts")
            begin_run()
            self.interruptible = True

    cdef _end(self):
        if on_main_thread():
            self.interruptible = False

    def check_open(self):
        if self.session.get() == NULL:
            raise RuntimeError("this session was closed, or never loaded: load another one")

    @property
    def closed(self):
        return self.session.get() == NULL

    def close(self):
        """What runs in other threads and results on the device still use goes after them."""
        cdef shared_ptr[CSession] session
        session.swap(self.session)
        with nogil:
            session.reset()

    def run(self, const int32_t[::1] ids not None, const int32_t[::1] cu_seqlens not None,
            const int32_t[::1] type_ids, const int32_t[::1] position_ids,
            const int32_t[::1] rows, arrays):
        """Writes into `arrays`: see _host_outputs. `rows`: that predictions are of, or None."""
        cdef CPackedTokens batch = _host_batch(ids, cu_seqlens, type_ids, position_ids, rows)
        cdef RunOutputs outputs = _host_outputs(arrays)
        cdef shared_ptr[CSession] session = self._open()
        self._begin()
        try:
            with nogil:
                deref(session).run(batch, outputs)
        finally:
            self._end()

    def run_from_device(self, batch, const int32_t[::1] rows, uintptr_t stream, arrays):
        """`batch`: (ids, cu_seqlens, type_ids, position_ids, T, B), addresses of the device."""
        cdef CDeviceTokens tokens = _device_batch(batch, rows)
        cdef RunOutputs outputs = _host_outputs(arrays)
        cdef shared_ptr[CSession] session = self._open()
        with nogil:
            deref(session).run(tokens, outputs, stream)

    def run_to_device(self, const int32_t[::1] ids not None, const int32_t[::1] cu_seqlens not None,
                      const int32_t[::1] type_ids, const int32_t[::1] position_ids,
                      const int32_t[::1] rows, outputs, uintptr_t stream):
        """{name: DeviceArray} of the names in `outputs`."""
        cdef CPackedTokens batch = _host_batch(ids, cu_seqlens, type_ids, position_ids, rows)
        cdef DeviceOutputSet wanted = _wanted(outputs)
        cdef shared_ptr[CSession] session = self._open()
        cdef DeviceOutputs results
        with nogil:
            results = deref(session).run_on_device(batch, wanted, stream)
        return _device_arrays(results)

    def run_on_device(self, batch, const int32_t[::1] rows, owner, outputs, uintptr_t stream):
        """From device to device; `owner` keeps the batch, and is kept until it has been read."""
        cdef CDeviceTokens tokens = _device_batch(batch, rows)
        cdef DeviceOutputSet wanted = _wanted(outputs)
        cdef shared_ptr[CSession] session = self._open()
        cdef shared_ptr[const void] held = hold(owner)
        cdef DeviceOutputs results
        with nogil:
            results = deref(session).run_on_device(tokens, wanted, stream, held)
        return _device_arrays(results)

    @property
    def stream(self):
        """Handle of the session's stream; 0 on the CPU."""
        return deref(self._open()).stream()

    def wait_for(self, uintptr_t stream):
        cdef shared_ptr[CSession] session = self._open()
        with nogil:
            deref(session).wait_for(stream)

    def time_encoder(self, const int32_t[::1] ids not None, const int32_t[::1] cu_seqlens not None,
                     int samples, int launches=10):
        """Milliseconds on the device, one mean of `launches` runs for each sample."""
        cdef CPackedTokens batch = _host_batch(ids, cu_seqlens, None, None, None)
        cdef vector[double] times
        cdef shared_ptr[CSession] session = self._open()
        self._begin()
        try:
            with nogil:
                times = deref(session).time_encoder(batch, samples, launches)
        finally:
            self._end()
        return list(times)

    def explain(self, const int32_t[::1] ids not None, const int32_t[::1] cu_seqlens not None,
                const int32_t[::1] type_ids, const int32_t[::1] position_ids):
        """A line for each choice of kernels that the batch leads to."""
        cdef CPackedTokens batch = _host_batch(ids, cu_seqlens, type_ids, position_ids, None)
        cdef vector[string] lines
        cdef shared_ptr[CSession] session = self._open()
        self._begin()
        try:
            with nogil:
                lines = deref(session).explain(batch)
        finally:
            self._end()
        return [line.decode() for line in lines]

    def memory_plan(self):
        return _plan(deref(self._open()).memory_plan())


def _watch_signals():
    watch(threading.main_thread().ident)


_watch_signals()
os.register_at_fork(after_in_child=_watch_signals)


def plan_memory(str spec_json, given):
    """`given`: SessionOptions."""
    cdef SessionOptions options = _options(given)
    cdef string spec = spec_json.encode()
    cdef CMemoryPlan plan
    with nogil:
        plan = c_plan_memory(spec, options)
    return _plan(plan)


def available_devices():
    """Names of the devices that this build and this machine can run on."""
    return [name.decode() for name in c_available_devices()]


def start_cpu_profile():
    c_start_cpu_profile()


def stop_cpu_profile():
    return {part.first.decode(): part.second for part in c_stop_cpu_profile()}


def version():
    return c_version().decode()
