// Checks of mixtures of experts and of scaled residuals.
#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void Ops::moe(const MoeArgs& args) {
  const char* op = "moe";
  check_compute_dtype(op, "x", args.x);
  check_contiguous(op, "x", args.x);
  check_result(op, {}, args.out, args.x.rows(), args.x.columns(), args.x.dtype);
  check_compute_dtype(op, "logits", args.logits);
  check_matrix(op, "logits", args.logits, args.x.rows(), args.logits.columns());
  const auto experts = static_cast<int64_t>(args.experts.size());
  if (experts < 1 || args.num_classes < experts || args.num_classes > args.logits.columns() ||
      args.balance == nullptr) {
    fail(op, concat(experts, " experts, ", args.num_classes, " classes, logits with ",
                    args.logits.columns(), " columns, expected no more of one than of the next, ",
                    "and their balance"));
  }
  for (const ExpertWeights& expert : args.experts) {
    check_weight(op, "up", expert.up, args.x.columns(), args.x.dtype);
    check_weight(op, "down", expert.down, expert.up.out_features / 2, args.x.dtype);
    if (expert.up.out_features % (2 * kGateBlock) != 0 ||
        expert.up.out_features != args.experts.front().up.out_features ||
        expert.down.out_features != args.x.columns()) {
      fail(op, concat("an expert of ", expert.up.out_features, " and ", expert.down.out_features,
                      " features, expected ", args.experts.front().up.out_features,
                      ", a multiple of ", 2 * kGateBlock, ", and ", args.x.columns()));
    }
  }
  if (args.x.rows() > 0) do_moe(args);
}

void Ops::add_scaled(const AddScaledArgs& args) {
  const char* op = "add_scaled";
  check_compute_dtype(op, "x", args.x);
  check_result(op, args.residual, args.out, args.x.rows(), args.x.columns(), args.x.dtype);
  if (args.x.rows() > 0) do_add_scaled(args);
}

}  // namespace packhorse
