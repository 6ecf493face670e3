// Checks of the operator that makes frames of samples.
#include "core/format.h"
#include "ops/checks.h"
#include "ops/ops.h"

namespace packhorse {

void Ops::mel_logs(const MelLogsArgs& args) {
  const char* op = "mel_logs";
  const int64_t bands = args.out.columns();
  check_matrix(op, "out", args.out, args.out.rows(), bands);
  check_dtype_is(op, "out", args.out, DType::kFloat32);
  if (bands < 1 || bands > kMostMels) {
    fail(op, concat("out has ", bands, " columns, expected 1 to ", kMostMels, " bands"));
  }
  if (args.out.rows() == 0) return;
  if (args.samples == nullptr || args.largest == nullptr)
    fail(op, "samples or largest are missing");
  do_mel_logs(args);
}

void Ops::do_mel_logs(const MelLogsArgs&) {
  fail("mel_logs", "this device makes no frames of samples");
}

}  // namespace packhorse
