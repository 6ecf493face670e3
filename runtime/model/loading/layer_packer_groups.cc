// The parts of LayerPacker that make layers whose weights are quantised in groups.
#include <utility>

#include "core/format.h"
#include "model/loading/grouped_parts.h"
#include "model/loading/layer_packer.h"
#include "packhorse/error.h"

namespace packhorse {

LinearFormat LayerPacker::format_of(const std::vector<Part>& parts, const Spread& columns,
                                    int64_t in_features, const LinearFormat& format) const {
  WeightGroups groups;
  for (const Part& part : parts) {
    const auto found = precision_.groups.find(part.grouped_name());
    if (found == precision_.groups.end()) return format;  // then none is: see parse_quantized
    groups = groups ? common_groups(groups, found->second) : found->second;
  }
  if (columns.size != columns.stride && columns.extent != columns.size) {
    throw InvalidArgument(concat("weights: '", parts.front().name, "' is quantised in groups of ",
                                 groups.size, " input features, but ", columns.size, " of every ",
                                 columns.stride, " of its ", in_features,
                                 " features are padded; load this model with a dtype of floats"));
  }
  return backend_.packer->grouped_format(groups, precision_.floats());
}

void LayerPacker::pack_groups(const LinearWeight& weight, const LinearFormat& format,
                              const std::vector<Part>& parts, const Spread& columns,
                              const std::vector<FusedTensor>& fused, void* packed) {
  std::vector<Location> places;
  int64_t placed = 0;
  for (const Part& part : parts) {
    places.push_back(locate(part, parts, fused, ".weight"));
    placed += part.rows.extent * columns.extent;
  }
  const int64_t in_features = weight.in_features;
  const bool full = placed == weight.out_features * in_features;
  const std::vector<Origin> origins = origins_of(weight.out_features, parts, places);
  const auto open = [&](size_t part) {
    return GroupedTensor(*reader_, places[part].name, places[part].rows, columns.extent,
                         precision_.groups.at(parts[part].grouped_name()));
  };
  if (backend_.packer->features_apart(format) != 0 && are_read_together(places)) {
    std::vector<GroupedTensor> sources;
    for (size_t part = 0; part < parts.size(); ++part) sources.push_back(open(part));
    for_features_apart(weight, format, [&](int64_t first, int64_t count) {
      grouped_.use([&](GroupedLayer& layer) {
        layer.begin(count, in_features, format.groups, full);
        for (int64_t i = 0; i < count; ++i) {
          const Origin& origin = origins[static_cast<size_t>(first + i)];
          if (origin.part < 0) continue;
          layer.put_row(sources[static_cast<size_t>(origin.part)], origin.row, i);
        }
        backend_.packer->pack_group_rows(layer.weight(), first, count, in_features, format, packed);
      });
    });
    for (const GroupedTensor& source : sources) {
      reader_->release(source.tensor, 0, source.tensor.rows());
    }
    return;
  }
  GroupedLayer layer;
  layer.begin(weight.out_features, in_features, format.groups, full);
  for (size_t part = 0; part < parts.size(); ++part) {
    const GroupedTensor source = open(part);
    for_each_piece(weight.out_features, in_features, [&](int64_t first, int64_t count) {
      for (int64_t to = first; to < first + count; ++to) {
        const Origin& origin = origins[static_cast<size_t>(to)];
        if (origin.part == static_cast<int32_t>(part)) layer.put_row(source, origin.row, to);
      }
    });
    reader_->release(source.tensor, 0, source.tensor.rows());
  }
  backend_.packer->pack_groups(layer.weight(), in_features, weight.out_features, format, packed);
}

std::function<void(int64_t, int64_t, float*)> LayerPacker::row_reader(const std::string& name,
                                                                      int64_t rows,
                                                                      int64_t columns) const {
  const auto found = precision_.groups.find(name);
  if (found == precision_.groups.end()) {
    const SourceTensor source = reader_->require(name, rows, columns);
    return [this, name, source](int64_t first, int64_t count, float* to) {
      reader_->read_rows(name, source, first, count, to);
    };
  }
  const GroupedTensor source(*reader_, name, rows, columns, found->second);
  return [this, source](int64_t first, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) source.decode_row(first + i, to + i * source.columns);
    reader_->release(source.tensor, first, count);
  };
}

const int32_t* LayerPacker::input_order(const std::string& name, const std::vector<Part>& parts,
                                        const Spread& columns, int64_t in_features,
                                        const std::vector<FusedTensor>& fused) {
  return array<int32_t>(name + ".input_order", in_features, [&] {
    std::vector<int32_t> order;
    std::string first;  // the tensor that `order` comes from
    for (const Part& part : parts) {
      const Location from = locate(part, parts, fused, ".input_order");
      if (from.name == first) continue;
      std::vector<int32_t> found = read_input_order(*reader_, from.name, columns.extent);
      if (!first.empty() && found != order) {
        throw InvalidArgument(concat("weights: tensors '", first, "' and '", from.name,
                                     "' differ, expected one order: their layers share an input"));
      }
      order = std::move(found);
      first = from.name;
    }
    // Columns that only fill up the input stay where they are.
    for (int64_t i = columns.extent; i < in_features; ++i) order.push_back(static_cast<int32_t>(i));
    return order;
  });
}

}  // namespace packhorse
