# cython: language_level=3, boundscheck=False, wraparound=False
"""The C++ session, wrapped one to one: this module converts arguments and releases the interpreter
lock, and decides nothing."""

import mmap
import os
import threading

import numpy as np

from cython.operator cimport dereference as deref
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp.utility cimport move

from packhorse._native.device cimport (
    DeviceArray,
    Int32Span,
    float_pointer,
    float_values,
    hold,
    int32_values,
    int32_vector,
    parse_device,
    parse_dtype,
)
from packhorse._native.session cimport *

from packhorse.dtypes import native_dtype


cdef SessionOptions _options(given) except *:
    """The options of `given`, a packhorse.load_options.LoadOptions of an encoder session. Raises
    ValueError for a wrong one."""
    cdef SessionOptions options
    options.device = parse_device(given.device.encode())
    options.dtype = parse_dtype(native_dtype(given.dtype, given.device).encode())
    options.max_tokens = given.max_tokens
    options.max_sequences = given.max_sequences
    options.threads = 0 if given.threads is None else given.threads
    options.pin_threads = given.pin_threads
    options.output_slots = given.output_slots
    options.max_predictions = given.max_predictions
    options.attention_algorithm = parse_attention_algorithm(given.attention_algorithm.encode(),
                                                            b"attention_algorithm")
    if given.memory_limit is not None:
        options.memory_limit = <size_t> given.memory_limit
    return options


cdef class _Maker:
    """Holds the values of one tensor at a time. A tensor that a file holds in another form makes
    its `data` when it is asked for it, so that a model is never in memory twice."""

    cdef object tensors  # {name: tensor}
    cdef str name
    cdef object array  # values of the tensor `name`; C-contiguous

    def __init__(self, tensors):
        self.tensors, self.name, self.array = tensors, None, None


cdef TensorView _view(array, str dtype, str name) except *:
    """The view of a C-contiguous array."""
    cdef TensorView view
    if array.ndim < 1 or array.ndim > 4:
        raise ValueError(f"tensor '{name}' has {array.ndim} dimensions, expected 1 to 4")
    view.data = <void*> <uintptr_t> array.ctypes.data
    view.dtype = parse_dtype(dtype.encode())
    view.rank = array.ndim
    for i in range(array.ndim):
        view.shape[i] = array.shape[i]
    view.row_stride = array.size // max(1, array.shape[0])
    return view


cdef cpp_bool _make(void* maker, const string& name, TensorView& view) except False with gil:
    cdef _Maker made = <_Maker> maker
    cdef str wanted = name.decode()
    tensor = made.tensors[wanted]
    if made.name != wanted:
        made.name, made.array = None, None
        array = np.ascontiguousarray(tensor.data)
        made.name, made.array = wanted, array
    # Cython cannot assign to a reference as a whole.
    cdef TensorView found = _view(made.array, tensor.dtype, wanted)
    (&view)[0] = found
    return True


cdef TensorBlocks _blocks(stored) except *:
    """The view of a packhorse_weights.tensor.FileBlocks."""
    cdef TensorBlocks blocks
    blocks.data = <const uint8_t*> <uintptr_t> stored.data.ctypes.data
    blocks.kind = parse_block_kind(stored.kind.encode())
    blocks.rank = len(stored.shape)
    for i in range(blocks.rank):
        blocks.shape[i] = stored.shape[i]
    if stored.row_order is not None:
        blocks.row_order = int32_vector_of(stored.row_order)
    return blocks


cdef vector[int32_t] int32_vector_of(order) except *:
    cdef const int32_t* begin = <const int32_t*> <uintptr_t> order.ctypes.data
    cdef vector[int32_t] result
    result.assign(begin, begin + <size_t> order.size)
    return result


def _mapping_of(array):
    """The mapped file that an array is a view of, or None. A mapping that may be written to is
    memory like any other."""
    base = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None


cdef class Weights:
    """Weights that a session loads. They come from `tensors` ({name: an object with `data`, an
    array, and `dtype`; packhorse_weights.tensor.Tensor says what else it may have}) or, if that is
    None, from the safetensors `files`. `names` maps our names of tensors to theirs."""

    def __init__(self, list files, dict names, tensors):
        cdef vector[string] paths = [str(path).encode() for path in files]
        cdef cpp_map[string, string] theirs = {a.encode(): b.encode() for a, b in names.items()}
        cdef cpp_map[string, TensorView] ready
        cdef cpp_map[string, TensorBlocks] blocks
        cdef vector[FileMapping] mappings
        cdef vector[string] made
        cdef FileMapping mapping
        cdef bint in_memory = tensors is not None
        cdef unique_ptr[WeightSource] borrowed
        self.held = []
        for name, tensor in (tensors or {}).items():
            stored = getattr(tensor, "file_blocks", None)
            if stored is not None:
                blocks[name.encode()] = _blocks(stored)
                self.held.append(stored.data)
            elif getattr(tensor, "is_made", False) or not tensor.data.flags.c_contiguous:
                made.push_back(name.encode())
            else:
                ready[name.encode()] = _view(tensor.data, tensor.dtype, name)
                self.held.append(tensor.data)
        for file in {id(one): one for one in map(_mapping_of, self.held)}.values():
            if file is None:
                continue
            mapping.data = <void*> <uintptr_t> np.frombuffer(file, np.uint8).ctypes.data
            mapping.bytes = len(file)
            mapping.path = str(getattr(file, "path", "weights")).encode()
            mappings.push_back(mapping)
        self.maker = _Maker(tensors)
        cdef void* maker = <void*> self.maker
        with nogil:
            if in_memory:
                borrowed = borrow_tensors(move(ready), move(blocks), mappings)
                self.source.reset(new MadeTensors(move(borrowed), maker, _make, made))
            else:
                self.source = open_safetensors(paths)
            if not theirs.empty():
                self.source = rename_tensors(move(self.source), theirs)


cdef allocation_of(const PlannedAllocation& plan):
    cdef size_t i
    return plan.bytes, [
        (plan.buffers[i].name.decode(), plan.buffers[i].offset, plan.buffers[i].bytes)
        for i in range(plan.buffers.size())
    ]


cdef _plan(const CMemoryPlan& plan):
    return allocation_of(plan.weights), allocation_of(plan.arena)


cdef CPackedTokens _host_batch(vector[int32_t]& held, ids, cu_seqlens, type_ids, position_ids,
                               rows) except *:
    """The batch as a copy in `held`: it is checked, and must not change then, whatever another
    thread writes to the caller's arrays while the interpreter lock is free."""
    cdef CPackedTokens batch
    batch.ids = int32_vector(ids)
    batch.cu_seqlens = int32_vector(cu_seqlens)
    batch.type_ids = int32_vector(type_ids)
    batch.position_ids = int32_vector(position_ids)
    batch.prediction_rows = int32_vector(rows)
    return copy_batch(batch, held)


cdef const int32_t* _address(value) except? NULL:
    return <const int32_t*> <uintptr_t> value


cdef CDeviceTokens _device_batch(vector[int32_t]& held, batch, rows) except *:
    """Converts `batch`, a tuple (ids, cu_seqlens, type_ids, position_ids, T, B). The first four are
    addresses, 0 where there is no array. `held` gets a copy of `rows`."""
    cdef CDeviceTokens tokens
    tokens.ids = _address(batch[0])
    tokens.cu_seqlens = _address(batch[1])
    tokens.type_ids = _address(batch[2])
    tokens.position_ids = _address(batch[3])
    tokens.num_tokens, tokens.num_sequences = batch[4], batch[5]
    held = int32_values(rows)
    tokens.prediction_rows = Int32Span(held.data(), held.size())
    return tokens


cdef CPackedPatches _host_patches(vector[int32_t]& held, features, int64_t columns,
                                  grids) except *:
    """`features` is float32 [P, columns]. `held` gets a copy of `grids`."""
    cdef CPackedPatches batch
    held = int32_values(grids)
    batch.features = float_values(features)
    batch.columns = columns
    batch.grids = Int32Span(held.data(), held.size())
    return batch


cdef CDevicePatches _device_patches(vector[int32_t]& held, features, grids) except *:
    """`features` is a tuple (address, dtype, P, columns). `held` gets a copy of `grids`."""
    cdef CDevicePatches batch
    held = int32_values(grids)
    batch.features = <const void*> _address(features[0])
    batch.dtype = parse_dtype(features[1].encode())
    batch.num_patches, batch.columns = features[2], features[3]
    batch.grids = Int32Span(held.data(), held.size())
    return batch


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
    """Converts `arrays`, {name: writable C-contiguous float32 array of the right size}."""
    cdef RunOutputs outputs
    cdef size_t i
    for i in range(kOutputNames.size()):
        outputs[i] = float_pointer(arrays.get(kOutputNames[i].decode()))
    return outputs


cdef class NativeSession:
    """Owns one C++ session. Users call `packhorse.Session`, which wraps this class."""

    cdef shared_ptr[CSession] session  # null after close()
    cdef bint interruptible  # whether the main thread is in a run
    cdef public int64_t hidden_size
    cdef public int64_t max_seqlen
    cdef public int device_index  # number of the CUDA device; -1 on the CPU
    cdef public dict outputs  # {name: (whether per token, columns)} of the model's outputs

    @staticmethod
    def load(str spec_json, list files, dict names, tensors, given):
        """Loads a session. Weights are those of `Weights`, and `given` is a LoadOptions."""
        cdef NativeSession result = NativeSession()
        cdef SessionOptions options = _options(given)
        cdef string spec = spec_json.encode()
        cdef Weights weights = Weights(files, names, tensors)
        cdef vector[OutputShape] shapes
        cdef size_t i
        with nogil:
            result.session = CSession.load(spec, deref(weights.source), options)
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
        """Returns the session for one call. The call's own reference keeps it alive even if another
        thread closes it."""
        self.check_open()
        return self.session

    cdef _begin(self):
        """Begins a run during which Python may call signal handlers. A handler must not run the
        same session, because it would wait forever for the run that it interrupts; that raises
        RuntimeError."""
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
        """Closes the session. What runs in other threads or results on the device still use is
        freed after them."""
        cdef shared_ptr[CSession] session
        session.swap(self.session)
        with nogil:
            session.reset()

    def run(self, ids not None, cu_seqlens not None,
            type_ids, position_ids,
            rows, arrays, features=None):
        """Runs a batch in host memory and writes its outputs to `arrays` (see _host_outputs).
        `rows` are the tokens whose predictions are wanted, or None; `features` float32 rows that
        tokens take, or None."""
        cdef vector[int32_t] held
        cdef CPackedTokens batch = _host_batch(held, ids, cu_seqlens, type_ids, position_ids, rows)
        if features is not None:
            batch.features = float_values(features)
            batch.feature_columns = features.shape[1]
        cdef RunOutputs outputs = _host_outputs(arrays)
        cdef shared_ptr[CSession] session = self._open()
        self._begin()
        try:
            with nogil:
                deref(session).run(batch, outputs)
        finally:
            self._end()

    def run_patches(self, features not None, int64_t columns, grids not None, arrays):
        """Runs a batch of images in host memory and writes its outputs to `arrays`. `features` is
        float32 [P, columns], `grids` an int32 vector of rows and columns of each image."""
        cdef vector[int32_t] held
        cdef CPackedPatches batch = _host_patches(held, features, columns, grids)
        cdef RunOutputs outputs = _host_outputs(arrays)
        cdef shared_ptr[CSession] session = self._open()
        self._begin()
        try:
            with nogil:
                deref(session).run(batch, outputs)
        finally:
            self._end()

    def run_patches_from_device(self, features, grids not None, uintptr_t stream, arrays):
        """Runs a batch of images whose patches lie on the device, and writes its outputs to
        `arrays`. `features` is as in _device_patches."""
        cdef vector[int32_t] held
        cdef CDevicePatches batch = _device_patches(held, features, grids)
        cdef RunOutputs outputs = _host_outputs(arrays)
        cdef shared_ptr[CSession] session = self._open()
        with nogil:
            deref(session).run(batch, outputs, stream)

    def run_patches_to_device(self, features not None, int64_t columns, grids not None, outputs,
                              uintptr_t stream):
        """Counterpart of run_patches whose outputs stay on the device, as those of
        run_to_device."""
        cdef vector[int32_t] held
        cdef CPackedPatches batch = _host_patches(held, features, columns, grids)
        cdef DeviceOutputSet wanted = _wanted(outputs)
        cdef shared_ptr[CSession] session = self._open()
        cdef DeviceOutputs results
        with nogil:
            results = deref(session).run_on_device(batch, wanted, stream)
        return _device_arrays(results)

    def run_patches_on_device(self, features, grids not None, owner, outputs, uintptr_t stream):
        """Runs a batch of images whose patches lie on the device; its outputs stay there.
        `features` is as in _device_patches, `owner` as in run_on_device."""
        cdef vector[int32_t] held
        cdef CDevicePatches batch = _device_patches(held, features, grids)
        cdef DeviceOutputSet wanted = _wanted(outputs)
        cdef shared_ptr[CSession] session = self._open()
        cdef shared_ptr[const void] arrays = hold(owner)
        cdef DeviceOutputs results
        with nogil:
            results = deref(session).run_on_device(batch, wanted, stream, arrays)
        return _device_arrays(results)

    def run_from_device(self, batch, rows, uintptr_t stream, arrays):
        """Runs a batch that lies on the device and writes its outputs to `arrays`. `batch` is as in
        _device_batch."""
        cdef vector[int32_t] held
        cdef CDeviceTokens tokens = _device_batch(held, batch, rows)
        cdef RunOutputs outputs = _host_outputs(arrays)
        cdef shared_ptr[CSession] session = self._open()
        with nogil:
            deref(session).run(tokens, outputs, stream)

    def run_to_device(self, ids not None, cu_seqlens not None,
                      type_ids, position_ids,
                      rows, outputs, uintptr_t stream):
        """Runs a batch in host memory; its outputs stay on the device. Returns {name: DeviceArray}
        for the names in `outputs`."""
        cdef vector[int32_t] held
        cdef CPackedTokens batch = _host_batch(held, ids, cu_seqlens, type_ids, position_ids, rows)
        cdef DeviceOutputSet wanted = _wanted(outputs)
        cdef shared_ptr[CSession] session = self._open()
        cdef DeviceOutputs results
        with nogil:
            results = deref(session).run_on_device(batch, wanted, stream)
        return _device_arrays(results)

    def run_on_device(self, batch, rows, owner, outputs, uintptr_t stream):
        """Runs a batch that lies on the device; its outputs stay there. `owner` keeps the arrays of
        the batch alive and is held until they have been read."""
        cdef vector[int32_t] held
        cdef CDeviceTokens tokens = _device_batch(held, batch, rows)
        cdef DeviceOutputSet wanted = _wanted(outputs)
        cdef shared_ptr[CSession] session = self._open()
        cdef shared_ptr[const void] arrays = hold(owner)
        cdef DeviceOutputs results
        with nogil:
            results = deref(session).run_on_device(tokens, wanted, stream, arrays)
        return _device_arrays(results)

    @property
    def stream(self):
        """The handle of the session's stream, or 0 on the CPU."""
        return deref(self._open()).stream()

    def wait_for(self, uintptr_t stream):
        cdef shared_ptr[CSession] session = self._open()
        with nogil:
            deref(session).wait_for(stream)

    def time_encoder(self, ids not None, cu_seqlens not None,
                     int samples, int launches=10):
        """Returns the milliseconds that the device takes for the encoder: `samples` numbers, each
        the mean of `launches` runs."""
        cdef vector[int32_t] held
        cdef CPackedTokens batch = _host_batch(held, ids, cu_seqlens, None, None, None)
        cdef vector[double] times
        cdef shared_ptr[CSession] session = self._open()
        self._begin()
        try:
            with nogil:
                times = deref(session).time_encoder(batch, samples, launches)
        finally:
            self._end()
        return list(times)

    def explain(self, ids not None, cu_seqlens not None,
                type_ids, position_ids):
        """Returns one line for each choice of kernels that this batch leads to."""
        cdef vector[int32_t] held
        cdef CPackedTokens batch = _host_batch(held, ids, cu_seqlens, type_ids, position_ids, None)
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
    """Computes the memory plan of a spec. `given` is a LoadOptions."""
    cdef SessionOptions options = _options(given)
    cdef string spec = spec_json.encode()
    cdef CMemoryPlan plan
    with nogil:
        plan = c_plan_memory(spec, options)
    return _plan(plan)


def available_devices():
    """The names of the devices that this build and this machine can run on."""
    return [name.decode() for name in c_available_devices()]


def load_progress():
    """(bytes of weights that are loaded, bytes in total) of the load that this process began last;
    in total 0: none is under way."""
    cdef LoadProgress progress = c_load_progress()
    return progress.done, progress.total


def start_cpu_profile():
    c_start_cpu_profile()


def stop_cpu_profile():
    return {part.first.decode(): part.second for part in c_stop_cpu_profile()}


def version():
    return c_version().decode()
