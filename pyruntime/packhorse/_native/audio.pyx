# cython: language_level=3
"""Speech made the input of models (see packhorse.audio), one to one: this module converts arguments
and decides nothing."""

from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool as cpp_bool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from packhorse._native.device cimport (
    Device,
    FloatSpan,
    float_pointer,
    float_values,
    parse_device,
)

import numpy as np


cdef extern from "packhorse/audio.h" namespace "packhorse::audio" nogil:
    cdef enum class End:
        kReflect
        kSilence

    cdef cppclass LogMelArgs:
        LogMelArgs()
        FloatSpan samples
        int64_t num_mels
        End end
        float* out

    int64_t frames_of(int64_t)
    void c_log_mel "packhorse::audio::log_mel"(const LogMelArgs&, int) except +

cdef extern from "<span>" namespace "std" nogil:
    cdef cppclass AudioSpan "std::span<const packhorse::audio::LogMelArgs>":
        AudioSpan()
        AudioSpan(const LogMelArgs*, size_t)

cdef extern from "packhorse/audio.h" namespace "packhorse::audio" nogil:
    cdef cppclass CFrameMaker "packhorse::audio::FrameMaker":
        void make(AudioSpan) except +

    unique_ptr[CFrameMaker] make_frame_maker(Device, int64_t, int) except +

cdef extern from "packhorse/audio.h" namespace "packhorse::audio" nogil:
    cdef cppclass TokenTimesArgs:
        TokenTimesArgs()
        FloatSpan weights
        int64_t heads
        int64_t tokens
        int64_t frames
        int64_t first
        int64_t end
        int64_t filter_width

    vector[int32_t] c_token_times "packhorse::audio::token_times"(const TokenTimesArgs&) except +


def token_times(weights not None, int64_t first, int64_t end, int64_t filter_width):
    """Frames at which tokens [first, end) of weights [heads, tokens, frames] begin."""
    cdef TokenTimesArgs args
    cdef vector[int32_t] times
    args.weights = float_values(weights)
    args.heads, args.tokens, args.frames = weights.shape
    args.first = first
    args.end = end
    args.filter_width = filter_width
    with nogil:
        times = c_token_times(args)
    return times


def log_mel(samples not None, int64_t num_mels, cpp_bool reflect, int threads):
    """Frames float32 [frames, num_mels] of float32 samples."""
    cdef LogMelArgs args
    args.samples = float_values(samples)
    args.num_mels = num_mels
    args.end = End.kReflect if reflect else End.kSilence
    result = np.empty((frames_of(samples.size), max(0, num_mels)), np.float32)
    args.out = float_pointer(result)
    with nogil:
        c_log_mel(args, threads)
    return result


cdef class FrameMaker:
    """Makes frames of several audios at once on a device. Any thread may use it."""

    cdef unique_ptr[CFrameMaker] maker
    cdef readonly int64_t num_mels

    def __init__(self, str device not None, int64_t num_mels, int threads):
        cdef Device where = parse_device(device.encode())
        with nogil:
            self.maker = make_frame_maker(where, num_mels, threads)
        self.num_mels = num_mels

    def make(self, list audios not None, cpp_bool reflect):
        """Frames float32 [frames, num_mels] of each array of float32 samples."""
        cdef vector[LogMelArgs] all_args
        cdef LogMelArgs args
        args.num_mels = self.num_mels
        args.end = End.kReflect if reflect else End.kSilence
        results = []
        for samples in audios:
            args.samples = float_values(samples)
            results.append(np.empty((frames_of(samples.size), self.num_mels), np.float32))
            args.out = float_pointer(results[-1])
            all_args.push_back(args)
        cdef AudioSpan given = AudioSpan(all_args.data(), all_args.size())
        cdef CFrameMaker* maker = self.maker.get()
        with nogil:
            maker.make(given)
        return results
