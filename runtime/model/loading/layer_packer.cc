#include "model/loading/layer_packer.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/float8.h"
#include "core/float_convert.h"
#include "core/format.h"
#include "core/math.h"
#include "model/loading/progress.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

// The number of elements that are converted at a time: few enough to stay in a core's cache, and so
// that a large tensor is never held twice.
constexpr int64_t kPiece = int64_t{1} << 15;

// Fewer lines of memory than these are not worth a whole one more.
constexpr int64_t kFewLines = 8;

// The end that stands for ".weight" in the name of a matrix that the source has as [in, out].
constexpr const char* kTransposed = ".weight_transposed";

// Rounds values to what `dtype` can hold.
void round_to(DType dtype, std::vector<float>& values) {
  std::vector<char> bits(values.size() * size_of(dtype));
  from_float32(values.data(), dtype, bits.data(), values.size());
  to_float32(bits.data(), dtype, values.data(), values.size());
}

// Writes one row of the source to a row of a matrix, or one element if `columns` is empty.
void spread_row(const float* values, const Spread& columns, float* to) {
  if (columns.extent == 0) *to = *values;
  for (int64_t c = 0; c < columns.extent; c += columns.size, values += columns.size) {
    std::copy_n(values, columns.size, to + c / columns.size * columns.stride);
  }
}

}  // namespace

TensorView LayerPacker::table(const std::string& name, int64_t rows, int64_t columns, DType dtype,
                              float scale) {
  const int64_t stored = width(columns);
  const size_t row_bytes = static_cast<size_t>(stored) * size_of(dtype);
  const TensorView result = arena_.take_matrix(name, rows, stored, dtype);
  if (reader_ == nullptr) return result;
  const auto read = row_reader(name, rows, columns);
  for_each_piece_with_buffer(rows, columns, [&](int64_t row, int64_t count, auto& values) {
    read(row, count, values.data());
    check_range(name, values.data(), values.size());
    if (scale != 1) {
      std::vector<float> factor = {scale};
      round_to(dtype, factor);
      round_to(dtype, values);
      for (float& value : values) value *= factor.front();
      check_range(name, values.data(), values.size());
    }
    char* const to = result.as<char>() + static_cast<size_t>(row) * row_bytes;
    const size_t bytes = static_cast<size_t>(count) * row_bytes;
    note_loaded(bytes);
    if (dtype == DType::kFloat32 && stored == columns) {
      return backend_.device->upload(to, values.data(), bytes);
    }
    std::vector<char> converted(bytes);  // zeros: the padding
    const int64_t together = stored == columns ? count : 1;
    for (int64_t i = 0; i < count; i += together) {
      from_float32(values.data() + i * columns, dtype,
                   converted.data() + static_cast<size_t>(i) * row_bytes,
                   static_cast<size_t>(together * columns));
    }
    backend_.device->upload(to, converted.data(), bytes);
  });
  return result;
}

const float* LayerPacker::vector(const std::string& name, int64_t size) {
  return array<float>(name, width(size), [&] {
    std::vector<float> values = reader_->read_vector(name, size);
    values.resize(static_cast<size_t>(width(size)));
    return values;
  });
}

const float* LayerPacker::matrix(const std::string& name, int64_t rows, int64_t columns) {
  return array<float>(name, rows * columns, [&] {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    reader_->read_rows(name, reader_->require(name, rows, columns), 0, rows, values.data());
    return values;
  });
}

NormWeight LayerPacker::norm(const std::string& name, int64_t size) {
  NormWeight result;
  result.kind = norm_.kind;
  result.eps = norm_.eps;
  result.padding = static_cast<int32_t>(width(size) - size);
  result.gamma = gamma(name + ".weight", whole(size), width(size));
  if (norm_.bias) result.beta = vector(name + ".bias", size);
  return result;
}

NormedRows LayerPacker::normed_rows(const std::string& name, int64_t size) const {
  NormedRows rows;
  rows.gamma = reader_->read_vector(name + ".weight", size);
  for (float& value : rows.gamma) value += norm_.gamma_offset;
  if (norm_.bias) rows.beta = reader_->read_vector(name + ".bias", size);
  rows.beta.resize(static_cast<size_t>(size));
  return rows;
}

NormWeight LayerPacker::head_norm(const std::string& name, const Spread& spread) {
  NormWeight result;
  result.kind = NormKind::kRms;
  result.eps = norm_.eps;
  result.gamma = gamma(name + ".weight", spread, spread.extent);
  return result;
}

const float* LayerPacker::gamma(const std::string& name, const Spread& spread, int64_t stored) {
  return array<float>(name, stored, [&] {
    std::vector<float> values(static_cast<size_t>(spread.extent));
    place_vector({name, spread.extent, 0, spread.size}, spread, values.data());
    if (norm_.gamma_offset != 0) {
      for (float& value : values) value += norm_.gamma_offset;
    }
    values.resize(static_cast<size_t>(stored));
    return values;
  });
}

LinearWeight LayerPacker::dense(const std::string& name, int64_t out_features, int64_t in_features,
                                bool bias) {
  return linear({name,
                 {{name, whole(out_features), bias}},
                 width(out_features),
                 whole(in_features),
                 width(in_features)},
                precision_.rest);
}

LinearWeight LayerPacker::padded_dense(const std::string& name, int64_t out_features,
                                       int64_t in_features, bool bias) {
  return padded_dense(name, out_features, in_features, bias, precision_.rest, {});
}

LinearWeight LayerPacker::padded_dense(const std::string& name, int64_t out_features,
                                       int64_t in_features, bool bias, const LinearFormat& format,
                                       const std::string& weight) {
  return linear({name,
                 {{name, whole(out_features), bias, weight}},
                 padded(out_features),
                 whole(in_features),
                 width(in_features)},
                format);
}

LinearWeight LayerPacker::gathering(const std::string& name, const Spread& columns,
                                    int64_t in_features) {
  const LinearFormat& format = precision_.rest;
  void* packed = nullptr;
  const LinearWeight result =
      take_linear(name, padded(columns.extent), in_features, format, packed);
  if (reader_ == nullptr) return result;
  staging_.assign(static_cast<size_t>(in_features * result.out_features), 0.0f);
  for (int64_t i = 0; i < columns.extent; ++i) {
    const int64_t from = i / columns.size * columns.stride + i % columns.size;
    staging_[static_cast<size_t>(i * in_features + from)] = 1.0f;
  }
  backend_.packer->pack(staging_.data(), in_features, result.out_features, format, packed);
  return result;
}

int64_t LayerPacker::width(int64_t columns) const {
  // Rows of e4m3 must have whole 16-byte chunks.
  const int64_t float8 = precision_.has_float8() ? 16 : 1;
  return round_up(columns, std::max(float8, backend_.ops->width_multiple()));
}

int64_t LayerPacker::inner_width(int64_t columns) const {
  const bool float8 = precision_.layers.weight == DType::kFloat8;
  const int64_t line = backend_.ops->line_bytes() / (float8 ? 1 : 2);
  const bool in_groups = precision_.layers.groups || !precision_.groups.empty();
  const bool pads = line > 1 && !in_groups && columns >= kFewLines * line;
  return pads ? round_up(columns, line) : width(columns);
}

int64_t LayerPacker::padded(int64_t features) const {
  return round_up(features, backend_.ops->head_dim_multiple());
}

LinearWeight LayerPacker::take_linear(const std::string& name, int64_t out_features,
                                      int64_t in_features, const LinearFormat& format,
                                      void*& packed) {
  packed = arena_.take(name + ".weight", backend_.packer->bytes(in_features, out_features, format));
  LinearWeight result;
  result.dtype = format.weight;
  result.in_features = in_features;
  result.out_features = out_features;
  result.groups = format.groups;
  result.skinny = format.skinny;
  result.data = packed;
  return result;
}

LinearWeight LayerPacker::linear(const DenseLayout& layout, const LinearFormat& asked,
                                 const WeightSeen& seen) {
  const auto& [name, parts, out_features, columns, in_features, fused] = layout;
  const LinearFormat format = format_of(parts, columns, in_features, asked);
  void* packed = nullptr;
  LinearWeight result = take_linear(name, out_features, in_features, format, packed);
  if (reader_ != nullptr && precision_.groups.contains(parts.front().grouped_name())) {
    pack_groups(result, format, parts, columns, fused, packed);
  } else if (reader_ != nullptr) {
    pack(result, format, parts, columns, fused, seen != nullptr, packed);
  }
  if (reader_ != nullptr) note_loaded(backend_.packer->bytes(in_features, out_features, format));
  if (format.groups.ordered) {
    result.input_order = input_order(name, parts, columns, in_features, fused);
  }
  if (std::none_of(parts.begin(), parts.end(), [](const Part& part) { return part.bias; })) {
    if (reader_ != nullptr && seen) seen(staging_.data(), nullptr);
    return result;
  }
  result.bias = array<float>(name + ".bias", out_features, [&] {
    std::vector<float> values(static_cast<size_t>(out_features));
    for (const Part& part : parts) {
      if (part.bias) place_vector(locate(part, parts, fused, ".bias"), part.rows, values.data());
    }
    if (seen) seen(staging_.data(), values.data());
    return values;
  });
  return result;
}

void LayerPacker::pack(const LinearWeight& weight, const LinearFormat& format,
                       const std::vector<Part>& parts, const Spread& columns,
                       const std::vector<FusedTensor>& fused, bool keep, void* packed) {
  const int64_t in_features = weight.in_features;
  const int64_t out_features = weight.out_features;
  const Location first = locate(parts.front(), parts, fused, ".weight");
  // Rows in int8 take another form where the layer is to have its weights in groups.
  const DType of_source = format.groups ? DType::kInt8 : format.weight;
  const bool quantized = format.quantized() && reader_->has_dtype(first.name, of_source);
  if (!keep && !quantized && pack_by_rows(weight, format, parts, columns, fused, packed)) return;
  const Spread& rows = parts.front().rows;
  if (!keep && !quantized && !first.transposed && first.slices == 0 && first.rows == out_features &&
      rows.extent == out_features && rows.paired == 0 && columns.extent == in_features &&
      pack_in_place(weight, format, first.name, packed)) {
    return;
  }
  int64_t placed = 0;
  for (const Part& part : parts) placed += part.rows.extent * columns.extent;
  staging_.resize(static_cast<size_t>(in_features * out_features));
  // Elements between the parts must be zeros.
  if (placed < in_features * out_features) std::fill(staging_.begin(), staging_.end(), 0.0f);
  for (const Part& part : parts) {
    const Location from = locate(part, parts, fused, ".weight");
    if (from.transposed) {
      place_transposed(reader_->require(from.name, columns.extent, from.rows), from, part.rows,
                       columns, in_features, staging_.data());
      continue;
    }
    const SourceTensor source =
        quantized ? reader_->require_quantized(from.name, of_source, from.rows, columns.extent)
                  : require(from, columns.extent);
    place(source, from, part.rows, columns, in_features, staging_.data());
  }
  if (!quantized) {
    backend_.packer->pack(staging_.data(), in_features, out_features, format, packed);
    return;
  }
  std::vector<float> scales(static_cast<size_t>(out_features));
  for (const Part& part : parts) {
    place_vector(locate(part, parts, fused, ".weight_scale"), part.rows, scales.data());
  }
  const auto multiply_by_scales = [&] {
    for (size_t i = 0; i < staging_.size(); ++i) {
      staging_[i] *= scales[i / static_cast<size_t>(in_features)];
    }
  };
  if (format.groups) {
    multiply_by_scales();
    backend_.packer->pack(staging_.data(), in_features, out_features, format, packed);
    return;
  }
  std::vector<int8_t> values(staging_.size());
  const bool float8 = format.weight == DType::kFloat8;
  std::transform(staging_.begin(), staging_.end(), values.begin(), [&](float value) {
    return static_cast<int8_t>(float8 ? float32_to_float8(value) : value);
  });
  backend_.packer->pack_quantized(values.data(), scales.data(), in_features, out_features, format,
                                  packed);
  if (keep) multiply_by_scales();
}

std::vector<LayerPacker::Origin> LayerPacker::origins_of(
    int64_t out_features, const std::vector<Part>& parts,
    const std::vector<Location>& places) const {
  std::vector<Origin> origins(static_cast<size_t>(out_features));
  for (size_t p = 0; p < parts.size(); ++p) {
    const Spread& rows = parts[p].rows;
    for (int64_t row = 0; row < rows.extent; ++row) {
      const int64_t group = row / rows.size;
      const int64_t in_group = row % rows.size;
      const int64_t to = rows.offset + group * rows.stride + rows.place(in_group);
      origins[static_cast<size_t>(to)] = {static_cast<int32_t>(p),
                                          places[p].first + group * places[p].step + in_group};
    }
  }
  return origins;
}

bool LayerPacker::are_read_together(const std::vector<Location>& places) const {
  return places.size() == 1 || std::all_of(places.begin(), places.end(), [&](const auto& place) {
           return reader_->lasts(place.name);
         });
}

bool LayerPacker::for_features_apart(const LinearWeight& weight, const LinearFormat& format,
                                     const std::function<void(int64_t, int64_t)>& body) {
  const int64_t apart = backend_.packer->features_apart(format);
  if (apart == 0) return false;
  const int64_t piece = apart * std::max<int64_t>(1, kPiece / (apart * weight.in_features));
  backend_.device->for_each(ceil_div(weight.out_features, piece), [&](int64_t i) {
    body(i * piece, std::min(piece, weight.out_features - i * piece));
  });
  return true;
}

bool LayerPacker::pack_by_rows(const LinearWeight& weight, const LinearFormat& format,
                               const std::vector<Part>& parts, const Spread& columns,
                               const std::vector<FusedTensor>& fused, void* packed) {
  if (backend_.packer->features_apart(format) == 0) return false;
  std::vector<Location> places;
  for (const Part& part : parts) places.push_back(locate(part, parts, fused, ".weight"));
  if (!are_read_together(places)) return false;
  std::vector<SourceTensor> sources;
  for (const Location& place : places) {
    if (place.transposed) return false;
    sources.push_back(require(place, columns.extent));
  }
  const std::vector<Origin> origins = origins_of(weight.out_features, parts, places);
  const int64_t in_features = weight.in_features;
  const bool whole_rows = columns.extent == in_features;
  // Calls each(part, its row, output feature, count) for rows that follow one another in both.
  const auto for_runs = [&](int64_t first, int64_t count, const auto& each) {
    for (int64_t at = first; at < first + count;) {
      const Origin& origin = origins[static_cast<size_t>(at)];
      int64_t end = at + 1;
      while (end < first + count && origins[static_cast<size_t>(end)].part == origin.part &&
             (origin.part < 0 || origins[static_cast<size_t>(end)].row == origin.row + end - at)) {
        ++end;
      }
      each(origin, at, end - at);
      at = end;
    }
  };
  return for_features_apart(weight, format, [&](int64_t first, int64_t count) {
    const Origin& origin = origins[static_cast<size_t>(first)];
    // Rows of a float32 file that lie as they are packed are not copied.
    bool as_stored = whole_rows && origin.part >= 0;
    for_runs(first, count, [&](const Origin&, int64_t, int64_t run) { as_stored &= run == count; });
    if (as_stored) {
      const SourceTensor& source = sources[static_cast<size_t>(origin.part)];
      const auto* values = source.as<const float>() + origin.row * in_features;
      if (source.blocks == nullptr && source.dtype == DType::kFloat32 &&
          reinterpret_cast<uintptr_t>(values) % alignof(float) == 0) {
        const std::string& name = places[static_cast<size_t>(origin.part)].name;
        reader_->check_finite(name, source, origin.row, count, values);
        check_range(name, values, static_cast<size_t>(count * in_features));
        backend_.packer->pack_rows(values, first, count, in_features, format, packed);
        return reader_->release(source, origin.row, count);
      }
    }
    rows_.use([&](std::vector<float>& buffer) {
      const int64_t values = count * in_features;
      // Rows are read behind the matrix if their columns move.
      buffer.resize(static_cast<size_t>(whole_rows ? values : values + columns.extent));
      for_runs(first, count, [&](const Origin& from, int64_t at, int64_t run) {
        float* to = buffer.data() + (at - first) * in_features;
        if (from.part < 0 || !whole_rows) std::fill_n(to, run * in_features, 0.0f);
        if (from.part < 0) return;
        const auto part = static_cast<size_t>(from.part);
        const std::string& name = places[part].name;
        if (whole_rows) {
          reader_->read_rows(name, sources[part], from.row, run, to);
          return check_range(name, to, static_cast<size_t>(run * in_features));
        }
        float* row = buffer.data() + values;
        for (int64_t i = 0; i < run; ++i) {
          reader_->read_rows(name, sources[part], from.row + i, 1, row);
          check_range(name, row, static_cast<size_t>(columns.extent));
          spread_row(row, columns, to + i * in_features);
        }
      });
      backend_.packer->pack_rows(buffer.data(), first, count, in_features, format, packed);
    });
  });
}

bool LayerPacker::pack_in_place(const LinearWeight& weight, const LinearFormat& format,
                                const std::string& name, void* packed) {
  const SourceTensor source = reader_->require(name, weight.out_features, weight.in_features);
  if (source.blocks != nullptr || source.dtype != DType::kFloat32 ||
      reinterpret_cast<uintptr_t>(source.data) % alignof(float) != 0) {
    return false;
  }
  const auto* values = source.as<const float>();
  for_each_piece(weight.out_features, weight.in_features, [&](int64_t row, int64_t count) {
    const float* piece = values + row * weight.in_features;
    reader_->check_finite(name, source, row, count, piece);
    check_range(name, piece, static_cast<size_t>(count * weight.in_features));
  });
  backend_.packer->pack(values, weight.in_features, weight.out_features, format, packed);
  reader_->release(source, 0, weight.out_features);
  return true;
}

LinearWeight LayerPacker::convolution(const std::string& name, int64_t out_features,
                                      int64_t in_features, int64_t width) {
  const LinearFormat& format = precision_.rest;
  const int64_t stored_out = this->width(out_features);
  const int64_t stored_in = this->width(in_features);
  void* packed = nullptr;
  LinearWeight result = take_linear(name, stored_out, width * stored_in, format, packed);
  result.bias = vector(name + ".bias", out_features);
  if (reader_ == nullptr) return result;
  const SourceTensor source = reader_->require(name + ".weight", out_features, in_features, width);
  std::vector<float> row(static_cast<size_t>(width * in_features));
  staging_.assign(static_cast<size_t>(result.in_features * stored_out), 0.0f);
  for (int64_t out = 0; out < out_features; ++out) {
    reader_->read_rows(name + ".weight", source, out, 1, row.data());
    check_range(name + ".weight", row.data(), row.size());
    float* to = staging_.data() + out * result.in_features;
    for (int64_t at = 0; at < width; ++at) {
      for (int64_t in = 0; in < in_features; ++in) {
        to[at * stored_in + in] = row[static_cast<size_t>(in * width + at)];
      }
    }
  }
  backend_.packer->pack(staging_.data(), result.in_features, stored_out, format, packed);
  return result;
}

LayerPacker::Location LayerPacker::locate(const Part& part, const std::vector<Part>& parts,
                                          const std::vector<FusedTensor>& fused,
                                          const char* suffix) const {
  const bool is_weight = suffix == std::string_view(".weight");
  const auto is_transposed = [&](const std::string& name) {
    return is_weight && reader_->has(name + kTransposed);
  };
  for (const FusedTensor& tensor : fused) {
    const bool transposed = is_transposed(tensor.name);
    if (!transposed && !reader_->has(tensor.name + suffix)) continue;
    Location found = {tensor.name + (transposed ? kTransposed : suffix), 0, 0, part.rows.size,
                      transposed};
    for (const std::string& held : tensor.names) {
      const auto other = std::find_if(parts.begin(), parts.end(),
                                      [&](const Part& one) { return one.name == held; });
      if (held == part.name) found.first = found.rows;
      found.rows += other->rows.extent;
    }
    if (tensor.by_head) {
      found.first = found.first / part.rows.extent * part.rows.size;
      found.step = part.rows.size * static_cast<int64_t>(tensor.names.size());
    }
    return found;
  }
  if (is_weight && !part.weight.empty()) {
    const int64_t rows = part.slices == 0 ? part.rows.extent : part.slices * part.slice_rows;
    return {part.weight, rows, part.first, part.rows.size, false, part.slices};
  }
  const bool transposed = is_transposed(part.name);
  return {part.name + (transposed ? kTransposed : suffix), part.rows.extent, 0, part.rows.size,
          transposed};
}

SourceTensor LayerPacker::require(const Location& from, int64_t columns) const {
  if (from.slices == 0) return reader_->require(from.name, from.rows, columns);
  return reader_->require(from.name, from.slices, from.rows / from.slices, columns)
      .as_matrix(from.rows, columns);
}

void LayerPacker::place_vector(const Location& from, const Spread& rows, float* to) {
  place(reader_->require(from.name, from.rows, 0), from, rows, {}, 1, to);
}

void LayerPacker::place(const SourceTensor& source, const Location& from, const Spread& rows,
                        const Spread& columns, int64_t row_length, float* to) {
  const int64_t width = std::max<int64_t>(1, columns.extent);
  for_each_piece_with_buffer(rows.extent, width, [&](int64_t begin, int64_t count, auto& values) {
    // Each iteration reads rows of one group, which are consecutive in the source.
    for (int64_t row = begin; row < begin + count;) {
      const int64_t group = row / rows.size;
      const int64_t in_group = row % rows.size;
      const int64_t together = std::min(rows.size - in_group, begin + count - row);
      reader_->read_rows(from.name, source, from.first + group * from.step + in_group, together,
                         values.data());
      if (columns.extent > 0) {
        check_range(from.name, values.data(), static_cast<size_t>(together * width));
      }
      float* group_rows = to + (rows.offset + group * rows.stride) * row_length;
      for (int64_t i = 0; i < together; ++i) {
        spread_row(values.data() + i * width, columns,
                   group_rows + rows.place(in_group + i) * row_length);
      }
      row += together;
    }
  });
}

void LayerPacker::place_transposed(const SourceTensor& source, const Location& from,
                                   const Spread& rows, const Spread& columns, int64_t row_length,
                                   float* to) {
  for_each_piece_with_buffer(
      columns.extent, from.rows, [&](int64_t begin, int64_t count, auto& values) {
        reader_->read_rows(from.name, source, begin, count, values.data());
        check_range(from.name, values.data(), values.size());
        for (int64_t row = 0; row < rows.extent; ++row) {
          const int64_t group = row / rows.size;
          const int64_t in_group = row % rows.size;
          const float* value = values.data() + from.first + group * from.step + in_group;
          float* out = to + (rows.offset + group * rows.stride + rows.place(in_group)) * row_length;
          for (int64_t i = begin; i < begin + count; ++i, value += from.rows) {
            out[i / columns.size * columns.stride + i % columns.size] = *value;
          }
        }
      });
}

void LayerPacker::for_each_piece(int64_t rows, int64_t columns,
                                 const std::function<void(int64_t, int64_t)>& body) {
  const int64_t piece = std::max<int64_t>(1, kPiece / columns);
  backend_.device->for_each(ceil_div(rows, piece),
                            [&](int64_t i) { body(i * piece, std::min(piece, rows - i * piece)); });
}

void LayerPacker::for_each_piece_with_buffer(
    int64_t rows, int64_t columns,
    const std::function<void(int64_t, int64_t, std::vector<float>&)>& body) {
  for_each_piece(rows, columns, [&](int64_t first, int64_t count) {
    rows_.use([&](std::vector<float>& buffer) {
      buffer.resize(static_cast<size_t>(count * columns));
      body(first, count, buffer);
    });
  });
}

void LayerPacker::check_range(const std::string& name, const float* values, size_t count) const {
  if (precision_.weights() != DType::kFloat16) return;
  const float* found =
      std::find_if(values, values + count, [](float value) { return std::abs(value) > 65504.0f; });
  if (found != values + count) {
    throw InvalidArgument(concat("weights: tensor '", name, "' holds ", *found,
                                 ", beyond float16's 65504; load it as bfloat16"));
  }
}

}  // namespace packhorse
