// Checks of LoRA adapters.
#include <utility>

#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void check_lora(const char* op, const LoraArgs& args) {
  const LoraLayer& layer = args.layer;
  const int64_t rows = args.x.rows();
  check_compute_dtype(op, "x", args.x);
  if (layer.num_parts < 1 || layer.max_rank < 1 || layer.b.rows() % layer.max_rank != 0) {
    fail(op, concat("layer has ", layer.num_parts, " parts of rank ", layer.max_rank,
                    " at most, b ", layer.b.rows(), " rows; expected some for each slot"));
  }
  check_matrix(op, "a", layer.a, layer.b.rows() * layer.num_parts, args.x.columns());
  check_matrix(op, "out", args.out, rows, layer.b.columns());
  for (auto [name, view] : {std::pair{"a", &layer.a}, {"b", &layer.b}, {"out", &args.out}}) {
    check_dtype_is(op, name, *view, args.x.dtype);
  }
  check_contiguous(op, "a", layer.a);
  check_contiguous(op, "b", layer.b);
  if (layer.num_parts > 1 && (layer.parts == nullptr || layer.b.columns() % kPartColumns != 0)) {
    fail(op, concat("a layer of ", layer.num_parts, " parts needs `parts`, and a multiple of ",
                    kPartColumns, " columns; found ", layer.b.columns()));
  }
  if (rows > 0 && (args.slots == nullptr || layer.ranks == nullptr || args.workspace == nullptr)) {
    fail(op, "slots, ranks or workspace are missing");
  }
}

void Ops::add_lora(const LoraArgs& args) {
  check_lora("add_lora", args);
  if (args.x.rows() > 0) do_add_lora(args);
}

}  // namespace packhorse
