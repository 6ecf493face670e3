# cython: language_level=3
"""Images resized and made the input of models (see packhorse.image), one to one: this module
converts arguments and decides nothing.

An image is a tuple (parts, width, channels, bytes of a pixel); a part is a tuple (rows, memory),
whose memory is a C-contiguous uint8 array or a capsule of the Arrow C data interface.
"""

from libc.stdint cimport int64_t, uint8_t
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector

import numpy as np


cdef extern from "image/features.h" namespace "packhorse::image" nogil:
    cdef cppclass Filter:
        pass

    cdef cppclass Rule:
        pass

    cdef cppclass Values:
        Values()

    cdef cppclass Size:
        int64_t height
        int64_t width

    cdef cppclass Pixels:
        int64_t width
        int channels
        int pixel_stride

    cdef cppclass Plan:
        Plan()
        Pixels pixels
        Size resized
        int64_t top
        int64_t left
        Size frame
        Size padded

    cdef cppclass Layout:
        Size patch

    void c_resize "packhorse::image::resize"(const Pixels&, Size, Filter, Rule, uint8_t*,
                                             int) except +
    void c_make_features "packhorse::image::make_features"(const vector[Plan]&, const Values&,
                                                           const Layout&, Filter, Rule,
                                                           int) except +


cdef extern from *:
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL
    bytes PyBytes_FromStringAndSize(const char*, Py_ssize_t)
    char* PyBytes_AsString(object) except NULL


cdef extern from "<string_view>" namespace "std" nogil:
    cdef cppclass string_view:
        string_view(const char*, size_t)


cdef extern from "<span>" namespace "std" nogil:
    cdef cppclass Bytes "std::span<const uint8_t>":
        Bytes(const uint8_t*, size_t)


cdef extern from "packhorse/_native/file_bytes.h" namespace "packhorse" nogil:
    size_t base64_size "packhorse::base64::size_of"(string_view)
    bint c_decode_base64 "packhorse::base64::decode"(string_view, uint8_t*)
    int64_t c_count_scans "packhorse::count_scans"(Bytes)
    vector[pair[size_t, size_t]] c_long_texts "packhorse::long_texts"(string_view, size_t)


cdef extern from "packhorse/_native/lent_pixels.h" namespace "packhorse":
    tuple c_lend_pixels "packhorse::lend_pixels"(object, int64_t) except +


cdef extern from "packhorse/_native/image.h" namespace "packhorse":
    void add_rows(Pixels&, object, int64_t) except +
    Filter parse_filter(string) except +
    Rule parse_rule(string) except +
    uint8_t* output_bytes(object, int64_t) except +
    Values parse_values(object) except +
    void place(vector[Plan]&, object, int64_t) except +


cdef int read_pixels(tuple image, Pixels& pixels) except -1:
    parts, pixels.width, pixels.channels, pixels.pixel_stride = image
    for rows, memory in parts:
        add_rows(pixels, memory, rows)
    return 0


cdef Size size_of(tuple size) except *:
    cdef Size result
    result.height, result.width = size
    return result


def resize(tuple image not None, tuple size not None, str resample not None, str backend not None,
           int threads):
    """The image at another (height, width), uint8 [height, width, channels]."""
    cdef Pixels pixels
    read_pixels(image, pixels)
    cdef Size to = size_of(size)
    cdef Filter filter = parse_filter(resample.encode())
    cdef Rule rule = parse_rule(backend.encode())
    result = np.empty((*size, pixels.channels), np.uint8)
    cdef uint8_t* out = output_bytes(result, to.height * to.width * pixels.channels)
    with nogil:
        c_resize(pixels, to, filter, rule, out, threads)
    return result


def make_features(list plans not None, values not None, tuple patch not None,
                  str resample not None, str backend not None, out not None, int64_t first,
                  int threads):
    """Fills `out` from element `first` on. A plan is a tuple (image, size that it is resized to,
    top and left of the frame, size of the frame, size that it is padded to); a patch of (0, 0)
    means planes."""
    cdef vector[Plan] all_plans
    cdef Plan plan
    for image, resized, (top, left), frame, padded in plans:
        plan = Plan()
        read_pixels(image, plan.pixels)
        plan.resized = size_of(resized)
        plan.top = top
        plan.left = left
        plan.frame = size_of(frame)
        plan.padded = size_of(padded)
        all_plans.push_back(plan)
    place(all_plans, out, first)
    cdef Values numbers = parse_values(values)
    cdef Layout layout
    layout.patch = size_of(patch)
    cdef Filter filter = parse_filter(resample.encode())
    cdef Rule rule = parse_rule(backend.encode())
    with nogil:
        c_make_features(all_plans, numbers, layout, filter, rule, threads)


def lend_pixels(memory not None, int64_t pixels):
    """Capsules ("arrow_schema", "arrow_array") of `pixels` numbers of 32 bits, by which Pillow
    reads and writes a uint8 array of four bytes for each."""
    return c_lend_pixels(memory, pixels)


def decode_base64(str text not None, Py_ssize_t begin):
    """The bytes that `text`, which is ASCII, stands for from `begin` on; None where it is not
    base64."""
    cdef Py_ssize_t size = 0
    cdef const char* chars = PyUnicode_AsUTF8AndSize(text, &size)
    if begin < 0 or begin > size:
        raise ValueError(f"begin is {begin}, but the text has {size} characters")
    cdef size_t length = size - begin
    cdef size_t made = base64_size(string_view(chars + begin, length))
    result = PyBytes_FromStringAndSize(NULL, made)
    cdef uint8_t* out = <uint8_t*>PyBytes_AsString(result)
    cdef bint right
    with nogil:
        right = c_decode_base64(string_view(chars + begin, length), out)
    return result if right else None


def long_texts(bytes json not None, size_t least):
    """Where the texts of JSON lie that have at least `least` characters and neither escapes nor
    characters beyond ASCII: (begin, end) of each, between its quotes."""
    cdef const char* chars = PyBytes_AsString(json)
    cdef size_t size = len(json)
    cdef vector[pair[size_t, size_t]] found
    with nogil:
        found = c_long_texts(string_view(chars, size), least)
    return found


def count_scans(bytes file not None):
    """How many scans a JPEG file begins, at most."""
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AsString(file)
    cdef size_t size = len(file)
    cdef int64_t count
    with nogil:
        count = c_count_scans(Bytes(data, size))
    return count
