# cython: language_level=3
"""Speech made the input of models (see packhorse.audio), one to one: this module converts arguments
and decides nothing."""

from libc.stdint cimport int64_t
from libcpp cimport bool as cpp_bool

from packhorse._native.device cimport FloatSpan, float_pointer, float_values

import numpy as np


cdef extern from "audio/log_mel.h" namespace "packhorse::audio" nogil:
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
