// Takes memory from an arena for single tensors and layers of a model, and fills it with their
// weights.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "model/loading/buffer_pool.h"
#include "model/loading/grouped_parts.h"
#include "model/loading/precision.h"
#include "model/loading/tensor_reader.h"
#include "model/spec/spec.h"
#include "ops/backend.h"

namespace packhorse {

/// Places of the rows or columns of a source matrix in a larger one: in groups of `size`,
/// which begin `stride` apart, the first of them at `offset`. This pads heads to their stored size
/// and lets blocks of gate and up alternate.
struct Spread {
  int64_t extent;  // rows or columns in the source
  int64_t size;
  int64_t stride;
  int64_t offset = 0;
  /// Only for rows: the two halves of the first `paired` rows of a group are interleaved, or, if
  /// negative, the first -`paired` rows, which are interleaved in the source, become two halves.
  int64_t paired = 0;

  /// The row of the group to which row i of the source's group goes.
  int64_t place(int64_t i) const {
    if (i < -paired) return i / 2 + (i % 2 == 0 ? 0 : -paired / 2);
    if (i >= paired) return i;
    return i < paired / 2 ? 2 * i : 2 * i - paired + 1;
  }
};

inline Spread whole(int64_t extent) { return {extent, extent, extent}; }

/// A matrix of the source whose rows become part of a layer.
struct Part {
  std::string name;  // without ".weight" / ".bias"
  Spread rows;
  bool bias;
  std::string weight = {};  // the weight's whole name, if it is another than name + ".weight"

  /// The name under which Precision::groups has the weight.
  const std::string& grouped_name() const { return weight.empty() ? name : weight; }
  /// If not 0, `weight` is a tensor [slices, slice_rows, columns], and the part begins at row
  /// `first` of it, where rows are counted through all slices.
  int64_t slices = 0;
  int64_t slice_rows = 0;
  int64_t first = 0;
};

/// A source tensor that may hold several parts, either one after the other or interleaved head by
/// head.
struct FusedTensor {
  std::vector<std::string> names;  // names of its parts, in order
  std::string name;
  bool by_head = false;
};

/// A dense layer that consists of several parts. The source may hold each part as a tensor of its
/// own, or all of them in one of the tensors `fused`, and each matrix transposed, under a name that
/// ends in ".weight_transposed".
struct DenseLayout {
  std::string name;
  std::vector<Part> parts;
  int64_t out_features = 0;  // as stored
  Spread columns;            // columns of the source
  int64_t in_features = 0;   // as stored
  std::vector<FusedTensor> fused = {};
};

/// The rows gamma * z + beta that a norm gives, as far as its weights say.
struct NormedRows {
  std::vector<float> gamma;
  std::vector<float> beta;  // as many as `gamma`
};

/// Is shown the weight of a layer as it is packed, [out_features, in_features], and its biases, or
/// null if it has none.
using WeightSeen = std::function<void(const float* weight, const float* bias)>;

/// Every method takes memory from the arena. Without a reader that is all it does, so that the
/// memory plan cannot differ from the load. Methods throw as TensorReader does, and InvalidArgument
/// naming the tensor if the dtype is float16 and a number is beyond its range.
class LayerPacker {
 public:
  /// `norm` is the form of the model's norms.
  LayerPacker(const NormSpec& norm, const Precision& precision, Backend& backend, Arena& arena,
              const TensorReader* reader)
      : norm_(norm), precision_(precision), backend_(backend), arena_(arena), reader_(reader) {}

  /// A table [rows, columns] in the dtype Precision::floats(), whose columns are padded to their
  /// `width`. Both its elements and `scale`, by which they are multiplied, are rounded to that
  /// dtype, and so is their product. A table in groups (Precision::groups) is decoded.
  TensorView table(const std::string& name, int64_t rows, int64_t columns, float scale = 1) {
    return table(name, rows, columns, precision_.floats(), scale);
  }
  /// Result in another dtype.
  TensorView table(const std::string& name, int64_t rows, int64_t columns, DType dtype,
                   float scale = 1);
  /// A vector [size] in float32, whatever the model's dtype, padded to its `width`.
  const float* vector(const std::string& name, int64_t size);
  const float* matrix(const std::string& name, int64_t rows, int64_t columns);
  template <class T>
  const T* constants(const std::string& name, const std::vector<T>& values) {
    return array<T>(name, static_cast<int64_t>(values.size()), [&] { return values; });
  }
  /// An array of the `size` values that `make` returns. A plan does not make them, because its
  /// sizes are only what a spec claims.
  template <class T, class Make>
  const T* array(const std::string& name, int64_t size, const Make& make) {
    auto* data = arena_.take_array<T>(name, static_cast<size_t>(size));
    if (reader_ != nullptr) {
      const std::vector<T> values = make();
      backend_.device->upload(data, values.data(), values.size() * sizeof(T));
    }
    return data;
  }

  NormWeight norm(const std::string& name, int64_t size);
  /// The weights of a norm of the source in host memory. Needs a reader.
  NormedRows normed_rows(const std::string& name, int64_t size) const;
  /// The RMS norm of a head, whose elements are placed as rows are.
  NormWeight head_norm(const std::string& name, const Spread& spread);
  /// `seen`, if there is one, is called where weights are read.
  LinearWeight linear(const DenseLayout& layout, const LinearFormat& format,
                      const WeightSeen& seen = {});
  /// A dense layer of the source between hidden states, both padded to their `width`, in the format
  /// Precision::rest.
  LinearWeight dense(const std::string& name, int64_t out_features, int64_t in_features,
                     bool bias = true);
  /// A dense layer in the format Precision::rest, whose output features are `padded`.
  LinearWeight padded_dense(const std::string& name, int64_t out_features, int64_t in_features,
                            bool bias);
  /// A dense layer as above in another format. `weight`: as Part::weight.
  LinearWeight padded_dense(const std::string& name, int64_t out_features, int64_t in_features,
                            bool bias, const LinearFormat& format, const std::string& weight);
  /// A layer that moves groups of columns which lie apart together: out[columns.extent, padded] =
  /// x W^T.
  LinearWeight gathering(const std::string& name, const Spread& columns, int64_t in_features);
  /// A convolution as a dense layer over neighbouring rows (UnfoldArgs). The source's weight is
  /// [out_features, in_features, width] and is transposed to [out_features, width * in_features].
  LinearWeight convolution(const std::string& name, int64_t out_features, int64_t in_features,
                           int64_t width);

  /// The number of columns of a hidden state, or of an embedding table, as stored: padded with
  /// zeros to a multiple that the device needs. Weights keep the padding at zero.
  int64_t width(int64_t columns) const;
  /// The number of columns between the two products of a feed-forward block, as stored: padded with
  /// zeros to whole lines of the device's memory where that adds few, since a product is slower
  /// where rows begin within a line.
  int64_t inner_width(int64_t columns) const;
  /// The number of features of a head as stored, which are padded with zeros to a multiple that the
  /// device's kernels need.
  int64_t padded(int64_t features) const;
  const Precision& precision() const { return precision_; }
  Backend& backend() const { return backend_; }
  Arena& arena() const { return arena_; }
  /// Null if no weights are read.
  const TensorReader* reader() const { return reader_; }
  /// A packer that takes memory from another arena and reads from `reader`, or reads nothing if
  /// that is null.
  LayerPacker over(Arena& arena, const TensorReader* reader) const {
    return LayerPacker(norm_, precision_, backend_, arena, reader);
  }

  /// A packer into the same memory, of the first of two stacks, whose norms have another form.
  LayerPacker of_source(const NormSpec& norm) const {
    return LayerPacker(norm, precision_.of_source(), backend_, arena_, reader_);
  }

  /// Where a part lies in the source: the tensor and its number of rows, the part's first row, and
  /// the distance between the beginnings of its groups of rows. A transposed tensor is a matrix
  /// [in, out], whose columns are these rows.
  struct Location {
    std::string name;
    int64_t rows;
    int64_t first;
    int64_t step;
    bool transposed = false;
    int64_t slices = 0;  // as in Part
  };

  /// Where the tensor of a part lies whose name ends in `suffix`.
  Location locate(const Part& part, const std::vector<Part>& parts,
                  const std::vector<FusedTensor>& fused, const char* suffix) const;

 private:
  // The gammas of a norm.
  const float* gamma(const std::string& name, const Spread& spread, int64_t stored);
  // Reads rows [first, first + count) of a table of the source, in floats or in groups.
  std::function<void(int64_t first, int64_t count, float* to)> row_reader(const std::string& name,
                                                                          int64_t rows,
                                                                          int64_t columns) const;
  // Writes rows of the source to a matrix of `row_length` columns, without touching what lies
  // between them. If `columns` is empty, `to` is a vector.
  void place(const SourceTensor& source, const Location& from, const Spread& rows,
             const Spread& columns, int64_t row_length, float* to);
  // Writes rows of a transposed matrix.
  void place_transposed(const SourceTensor& source, const Location& from, const Spread& rows,
                        const Spread& columns, int64_t row_length, float* to);
  void place_vector(const Location& from, const Spread& rows, float* to);
  // The tensor of the source, whose slices lie one after the other.
  SourceTensor require(const Location& from, int64_t columns) const;

  // Takes memory from the arena for a layer of these sizes.
  LinearWeight take_linear(const std::string& name, int64_t out_features, int64_t in_features,
                           const LinearFormat& format, void*& packed);
  // Row of a part's tensor that becomes an output feature; part -1: none, zeros.
  struct Origin {
    int32_t part = -1;
    int64_t row = 0;
  };
  // The origins of all output features.
  std::vector<Origin> origins_of(int64_t out_features, const std::vector<Part>& parts,
                                 const std::vector<Location>& places) const;
  // True if the tensors of all parts of a layer last, so that their rows are read in any order.
  bool are_read_together(const std::vector<Location>& places) const;
  // Calls body(first, count) for some output features at a time, in parallel, if the format packs
  // them apart. Otherwise returns false.
  bool for_features_apart(const LinearWeight& weight, const LinearFormat& format,
                          const std::function<void(int64_t, int64_t)>& body);
  // Packs the parts without a copy of all of them. Returns false if the format does not allow it,
  // or they are transposed.
  bool pack_by_rows(const LinearWeight& weight, const LinearFormat& format,
                    const std::vector<Part>& parts, const Spread& columns,
                    const std::vector<FusedTensor>& fused, void* packed);
  // Assembles the parts in staging_ and packs them. With `keep` staging_ holds the weight then.
  void pack(const LinearWeight& weight, const LinearFormat& format, const std::vector<Part>& parts,
            const Spread& columns, const std::vector<FusedTensor>& fused, bool keep, void* packed);
  // The format of a layer: that of its parts together, where the model has them in groups, else
  // `format`.
  LinearFormat format_of(const std::vector<Part>& parts, const Spread& columns, int64_t in_features,
                         const LinearFormat& format) const;
  // Assembles and packs parts that are quantised in groups.
  void pack_groups(const LinearWeight& weight, const LinearFormat& format,
                   const std::vector<Part>& parts, const Spread& columns,
                   const std::vector<FusedTensor>& fused, void* packed);
  // LinearWeight::input_order, which all parts have in common.
  const int32_t* input_order(const std::string& name, const std::vector<Part>& parts,
                             const Spread& columns, int64_t in_features,
                             const std::vector<FusedTensor>& fused);
  // Packs a tensor of the source without copying it first. Returns false if it is not aligned
  // float32.
  bool pack_in_place(const LinearWeight& weight, const LinearFormat& format,
                     const std::string& name, void* packed);
  // Throws InvalidArgument if a value is out of range for Precision::weights.
  void check_range(const std::string& name, const float* values, size_t count) const;
  // Calls body(first row, number of rows) for pieces of all rows, in parallel.
  void for_each_piece(int64_t rows, int64_t columns,
                      const std::function<void(int64_t, int64_t)>& body);
  // Calls body(first row, number of rows, floats for them) as above.
  void for_each_piece_with_buffer(
      int64_t rows, int64_t columns,
      const std::function<void(int64_t, int64_t, std::vector<float>&)>& body);

  const NormSpec norm_;
  const Precision precision_;
  Backend& backend_;
  Arena& arena_;
  const TensorReader* reader_;
  // Kept from layer to layer: memory that is new costs as much as what is written to it.
  std::vector<float> staging_;
  BufferPool<std::vector<float>> rows_;
  BufferPool<GroupedLayer> grouped_;
};

}  // namespace packhorse
