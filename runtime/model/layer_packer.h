// Lays single tensors and layers of a model out over an arena, and fills them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "model/precision.h"
#include "model/spec.h"
#include "model/tensor_reader.h"
#include "ops/backend.h"

namespace packhorse {

/// How the rows or columns of a matrix are spread: groups of `size`, `stride` apart, the first at
/// `offset`. Heads are padded so, and gate and up lie in turn.
struct Spread {
  int64_t extent;  // in the source
  int64_t size;
  int64_t stride;
  int64_t offset = 0;
  /// Rows alone: of the first `paired` of a group the two halves lie in turn.
  int64_t paired = 0;

  /// Where row i of a group goes.
  int64_t place(int64_t i) const {
    if (i >= paired) return i;
    return i < paired / 2 ? 2 * i : 2 * i - paired + 1;
  }
};

inline Spread whole(int64_t extent) { return {extent, extent, extent}; }

/// Rows of a matrix of the source that go into a layer.
struct Part {
  std::string name;  // without ".weight" / ".bias"
  Spread rows;
  bool bias;
};

/// A tensor of the source that may hold several parts, one after the other, or head by head.
struct FusedTensor {
  std::vector<std::string> names;  // of what it holds
  std::string name;
  bool by_head = false;
};

/// Every method takes its memory from the arena; without a reader that is all it does, so that the
/// plan cannot depart from the load. Throws as TensorReader does, and InvalidArgument naming a
/// tensor with a number beyond float16 where that is the dtype.
class LayerPacker {
 public:
  /// `norm`: what the model's norms are like.
  LayerPacker(const NormSpec& norm, const Precision& precision, Backend& backend, Arena& arena,
              const TensorReader* reader)
      : norm_(norm), precision_(precision), backend_(backend), arena_(arena), reader_(reader) {}

  /// In Precision::floats; columns are padded to their `width`.
  TensorView table(const std::string& name, int64_t rows, int64_t columns);
  /// float32, whatever the model's dtype; padded to its `width`.
  const float* vector(const std::string& name, int64_t size);
  /// [spread.extent], placed as rows are.
  const float* spread_vector(const std::string& name, const Spread& spread);
  const float* matrix(const std::string& name, int64_t rows, int64_t columns);
  template <class T>
  const T* constants(const std::string& name, const std::vector<T>& values) {
    auto* data = arena_.take_array<T>(name, values.size());
    if (reader_ != nullptr) {
      backend_.device->upload(data, values.data(), values.size() * sizeof(T));
    }
    return data;
  }

  NormWeight norm(const std::string& name, int64_t size);
  /// One layer of several parts. The source may hold them apart, or as one of `fused`.
  LinearWeight linear(const std::string& name, const std::vector<Part>& parts, int64_t out_features,
                      const Spread& columns, int64_t in_features, const LinearFormat& format,
                      const std::vector<FusedTensor>& fused = {});
  /// A layer of the source between hidden states, both padded to their `width`, in Precision::rest.
  LinearWeight dense(const std::string& name, int64_t out_features, int64_t in_features,
                     bool bias = true);
  /// Likewise to any number of features, which are `padded`.
  LinearWeight padded_dense(const std::string& name, int64_t out_features, int64_t in_features,
                            bool bias);
  /// What moves groups of columns that lie apart together: out[columns.extent, padded] = x W^T.
  LinearWeight gathering(const std::string& name, const Spread& columns, int64_t in_features);
  /// A convolution as a dense layer over neighbouring rows: [E, E, width] of the source, turned.
  LinearWeight convolution(const std::string& name, int64_t hidden_size, int64_t width);

  /// Columns of a hidden state, or of embedding tables, as stored: padded with zeros to what the
  /// device's rows are a multiple of. Weights keep the padding at zero.
  int64_t width(int64_t columns) const;
  /// Features of a head as stored: padded with zeros to what the device's kernels want.
  int64_t padded(int64_t features) const;
  const Precision& precision() const { return precision_; }
  Backend& backend() const { return backend_; }
  Arena& arena() const { return arena_; }
  /// Null where nothing is read.
  const TensorReader* reader() const { return reader_; }
  /// Takes memory from another arena, with or without reading what goes there.
  LayerPacker over(Arena& arena, const TensorReader* reader) const {
    return LayerPacker(norm_, precision_, backend_, arena, reader);
  }

 private:
  // Where a part lies in the source: a tensor of so many rows, the part's first, and how far apart
  // its groups begin.
  struct Location {
    std::string name;
    int64_t rows;
    int64_t first;
    int64_t step;
  };

  Location locate(const Part& part, const std::vector<Part>& parts,
                  const std::vector<FusedTensor>& fused, const char* suffix) const;
  // Spreads rows of the source over a matrix of `row_length` columns, leaving what lies between.
  // Without columns: over a vector.
  void place(const TensorView& source, const Location& from, const Spread& rows,
             const Spread& columns, int64_t row_length, float* to);
  void place_vector(const Location& from, const Spread& rows, float* to);

  // Memory of the arena for a layer of those sizes.
  LinearWeight take_linear(const std::string& name, int64_t out_features, int64_t in_features,
                           const LinearFormat& format, void*& packed);
  // Packs the parts, by way of staging_.
  void pack(const LinearWeight& weight, const LinearFormat& format, const std::vector<Part>& parts,
            const Spread& columns, const std::vector<FusedTensor>& fused, void* packed);
  // Packs one tensor of the source from where it lies; false if it is not float32 there.
  bool pack_in_place(const LinearWeight& weight, const LinearFormat& format,
                     const std::string& name, void* packed);
  // Throws InvalidArgument where a value is beyond the dtype of tables and activations.
  void check_range(const std::string& name, const float* values, size_t count) const;
  // body(first row, rows), in parallel.
  void for_each_piece(int64_t rows, int64_t columns,
                      const std::function<void(int64_t, int64_t)>& body);

  const NormSpec norm_;
  const Precision precision_;
  Backend& backend_;
  Arena& arena_;
  const TensorReader* reader_;
  std::vector<float> staging_;
};

}  // namespace packhorse
