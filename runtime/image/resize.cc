#include "image/resize.h"

#include <algorithm>
#include <numeric>

#include "core/format.h"
#include "core/math.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/processor.h"
#include "packhorse/error.h"

namespace packhorse::image {
namespace {

// Bytes of a band after the horizontal pass that stay in the second level of caches.
constexpr int64_t kBandBytes = int64_t{1} << 20;

const cpu::ImageKernels& image_kernels_here() {
  static const cpu::ImageKernels& kernels = [&]() -> const cpu::ImageKernels& {
    const cpu::CpuFeatures features = cpu::cpu_features();
    const bool bytes = features.vnni || features.isa == cpu::Isa::kNeonMatmul;
    const cpu::Kernels& all = cpu::kernels_here();
    return bytes && all.image_bytes.rows != 0 ? all.image_bytes : all.image;
  }();
  return kernels;
}

void check_side(const char* what, int64_t side) {
  if (side < 1 || side > kMostOfSide) {
    throw InvalidArgument(
        concat("the ", what, " is ", side, " pixels, expected 1 to ", kMostOfSide));
  }
}

void check_span(const char* what, Span span, int64_t end) {
  if (span.begin < 0 || span.begin >= span.end || span.end > end) {
    throw InvalidArgument(concat("the window's ", what, " are ", span.begin, " to ", span.end,
                                 ", expected a part of 0 to ", end));
  }
}

// True where Pillow 13 makes the vertical pass first (ImagingResampleInner).
bool shrinks_vertically(Size in, Size out) {
  return in.height > out.height && in.height - out.height > 2 * (in.width - out.width);
}

}  // namespace

Resizer::Resizer(const Pixels& pixels, const Window& window, Filter filter, Rule rule)
    : pixels_(pixels),
      window_(window),
      kernels_(image_kernels_here()),
      vertical_first_(rule == Rule::kPillow && shrinks_vertically(pixels.size(), window.size)) {
  check_side("height of an image", pixels.size().height);
  check_side("width of an image", pixels.width);
  check_side("height that is asked for", window.size.height);
  check_side("width that is asked for", window.size.width);
  check_span("rows", window.rows, window.size.height);
  check_span("columns", window.columns, window.size.width);
  const bool known =
      pixels.pixel_stride == pixels.channels || (pixels.pixel_stride == 4 && pixels.channels == 3);
  if (pixels.channels < 1 || pixels.channels > 4 || !known) {
    throw InvalidArgument(concat("an image has ", pixels.channels, " channels in pixels of ",
                                 pixels.pixel_stride, " bytes, expected 1 to 4 channels"));
  }
  const Size in = pixels.size();
  const Size out = window.size;
  if (in == out) {
    source_rows_.resize(static_cast<size_t>(window.rows.size()));
    source_columns_.resize(static_cast<size_t>(window.columns.size()));
    std::iota(source_rows_.begin(), source_rows_.end(), window.rows.begin);
    std::iota(source_columns_.begin(), source_columns_.end(), window.columns.begin);
  } else if (filter == Filter::kNearest) {
    const bool small = out.height + out.width <= 128;
    source_rows_ = nearest_pixels(in.height, out.height, window.rows, rule, small);
    source_columns_ = nearest_pixels(in.width, out.width, window.columns, rule, small);
  } else {
    rows_ = make_axis(in.height, out.height, window.rows, filter, rule, kernels_);
    columns_ = make_axis(in.width, out.width, window.columns, filter, rule, kernels_);
  }
  // Rows that two bands need are made twice: bands have several times as many of their own.
  const int64_t bytes = vertical_first_ ? pixels.width * pixels.pixel_stride
                                        : window.columns.size() * pixels.channels;
  int64_t taps = 1;
  for (const cpu::Taps& row : rows_.taps) taps = std::max<int64_t>(taps, 4 * row.quads);
  const int64_t source_rows = std::max(kBandBytes / bytes, 8 * taps);
  band_ = std::clamp(source_rows * out.height / in.height, int64_t{1}, window.rows.size());
}

void Resizer::make(Span rows, Scratch& scratch, Taker take) const {
  if (rows_.taps.empty()) return copy(rows, scratch, take);
  vertical_first_ ? resample_vertically_first(rows, scratch, take) : resample(rows, scratch, take);
}

void Resizer::copy(Span rows, Scratch& scratch, Taker take) const {
  const auto channels = static_cast<size_t>(pixels_.channels);
  uint8_t* const made = scratch.row.take(static_cast<int64_t>(source_columns_.size() * channels));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const auto source_row = static_cast<size_t>(source_rows_[static_cast<size_t>(row)]);
    const uint8_t* from = pixels_.rows[source_row];
    uint8_t* to = made;
    for (const int64_t column : source_columns_) {
      const uint8_t* pixel = from + column * pixels_.pixel_stride;
      for (size_t i = 0; i < channels; ++i) *to++ = pixel[i];
    }
    take.call(take.context, row, made);
  }
}

Span Resizer::sources_of(Span rows) const {
  const cpu::Taps first = taps_of(rows.begin), last = taps_of(rows.end - 1);
  return {int64_t{first.first} * 4, (int64_t{last.first} + last.quads) * 4};
}

// Rows beyond the end have weights of 0.
const uint8_t* Resizer::source_row(int64_t row) const {
  return pixels_.rows[static_cast<size_t>(std::min(row, pixels_.size().height - 1))];
}

void Resizer::resample_columns(Scratch& scratch, uint8_t* out, int64_t out_stride,
                               int pixel_stride) const {
  // The quads of columns that any output needs. Outputs that follow each other begin and end no
  // earlier.
  const int64_t first_quad = columns_.taps.front().first;
  const int64_t quads = columns_.taps.back().first + columns_.taps.back().quads - first_quad;
  const int channels = pixels_.channels;
  uint8_t* const packed = scratch.packed.take(quads * 4 * channels * kernels_.rows);
  kernels_.pack_pixels({.rows = scratch.rows.data(),
                        .out = packed,
                        .first_column = first_quad * 4,
                        .columns = pixels_.width,
                        .quads = quads,
                        .channels = channels,
                        .pixel_stride = pixel_stride});
  kernels_.resample_columns({.packed = packed,
                             .first_quad = first_quad,
                             .taps = columns_.taps.data(),
                             .words = columns_.words.data(),
                             .point = columns_.point,
                             .outputs = window_.columns.size(),
                             .channels = channels,
                             .out = out,
                             .out_stride = out_stride});
}

void Resizer::resample_row(int64_t row, const uint8_t* fours, int64_t first_row, int64_t columns,
                           uint8_t* out) const {
  const cpu::Taps taps = taps_of(row);
  kernels_.resample_row({.fours = fours + (int64_t{taps.first} * 4 - first_row) * columns,
                         .stride = columns * 4,
                         .quads = taps.quads,
                         .words = rows_.words.data() + taps.words,
                         .point = rows_.point,
                         .columns = columns,
                         .out = out});
}

void Resizer::resample(Span rows, Scratch& scratch, Taker take) const {
  const int64_t lanes = kernels_.rows;
  const Span sources = sources_of(rows);
  const int64_t columns =
      round_up(window_.columns.size() * pixels_.channels, int64_t{kernels_.column_step});
  uint8_t* const fours = scratch.fours.take(round_up(sources.size(), lanes) * columns);
  uint8_t* const made = scratch.row.take(columns);
  scratch.rows.resize(static_cast<size_t>(lanes));
  for (int64_t row = 0; row < sources.size(); row += lanes) {
    for (int64_t i = 0; i < lanes; ++i) {
      scratch.rows[static_cast<size_t>(i)] = source_row(sources.begin + row + i);
    }
    resample_columns(scratch, fours + row * columns, columns * 4, pixels_.pixel_stride);
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    resample_row(row, fours, sources.begin, columns, made);
    take.call(take.context, row, made);
  }
}

void Resizer::resample_vertically_first(Span rows, Scratch& scratch, Taker take) const {
  const int64_t lanes = kernels_.rows;
  const Span sources = sources_of(rows);
  const int64_t bytes = pixels_.width * pixels_.pixel_stride;
  const int64_t columns = round_up(bytes, int64_t{kernels_.column_step});
  uint8_t* const fours = scratch.fours.take(sources.size() * columns);
  for (int64_t row = 0; row < sources.size(); row += 4) {
    const uint8_t* four[4];
    for (int i = 0; i < 4; ++i) four[i] = source_row(sources.begin + row + i);
    kernels_.interleave_rows({.rows = four, .out = fours + row * columns, .bytes = bytes});
  }
  const int64_t made_bytes = window_.columns.size() * pixels_.channels;
  uint8_t* const between = scratch.rows_made.take(lanes * columns);
  uint8_t* const made_fours = scratch.fours_made.take(lanes * made_bytes);
  uint8_t* const made = scratch.row.take(4 * made_bytes);
  uint8_t* const made_rows[4] = {made, made + made_bytes, made + 2 * made_bytes,
                                 made + 3 * made_bytes};
  scratch.rows.resize(static_cast<size_t>(lanes));
  for (int64_t begin = rows.begin; begin < rows.end; begin += lanes) {
    const int64_t count = std::min(lanes, rows.end - begin);
    for (int64_t i = 0; i < lanes; ++i) {
      const int64_t row = std::min(i, count - 1);
      if (row == i) resample_row(begin + i, fours, sources.begin, columns, between + i * columns);
      scratch.rows[static_cast<size_t>(i)] = between + row * columns;
    }
    resample_columns(scratch, made_fours, made_bytes * 4, pixels_.pixel_stride);
    for (int64_t row = 0; row < count; row += 4) {
      const auto in_four = static_cast<int>(std::min(count - row, int64_t{4}));
      kernels_.separate_rows({.from = made_fours + row * made_bytes,
                              .rows = made_rows,
                              .bytes = made_bytes,
                              .count = in_four});
      for (int i = 0; i < in_four; ++i) take.call(take.context, begin + row + i, made_rows[i]);
    }
  }
}

}  // namespace packhorse::image
