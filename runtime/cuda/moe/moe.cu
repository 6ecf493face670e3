#include <algorithm>

#include "core/math.h"
#include "cuda/moe/gemm.cuh"
#include "cuda/moe/moe.h"
#include "cuda/moe/rows.cuh"

namespace packhorse::cuda {
namespace {

constexpr int kSamplers = 8;  // rows of a block

// The parts of the workspace, one after the other.
class Workspace {
 public:
  explicit Workspace(const MoeArgs& args) : begin_(static_cast<char*>(args.workspace)) {
    const int64_t rows = args.x.rows();
    columns = args.experts.front().down.in_features;
    parts.chosen = take<int32_t>(rows);
    parts.scales = take<float>(rows);
    parts.order = take<int32_t>(rows);
    parts.begins = take<int32_t>(args.num_classes + 1);
    inner = take<uint16_t>(rows * columns);
  }
  size_t bytes() const { return bytes_; }

  MoeRows parts;
  void* inner;  // [rows, columns], in the order of experts
  int64_t columns;

 private:
  template <class Value>
  Value* take(int64_t count) {
    const size_t at = bytes_;
    bytes_ += round_up(static_cast<size_t>(count) * sizeof(Value), 256);
    return reinterpret_cast<Value*>(begin_ == nullptr ? nullptr : begin_ + at);
  }

  char* begin_;
  size_t bytes_ = 0;
};

template <class T, int kRows, bool kUp>
void launch_gemm(const ExpertGemmArgs& args, int64_t rows, const KernelStream& stream) {
  using Gemm = ExpertGemm<T, kRows, kUp>;
  auto* kernel = expert_gemm_kernel<T, kRows, kUp>;
  constexpr size_t kBytes = sizeof(typename Gemm::Shared);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kBytes)));
  // Each expert may have a tile that is not full.
  const int64_t down = rows / kRows + std::min<int64_t>(rows, args.num_experts);
  const int64_t tiles = down * ceil_div(args.n, Gemm::kColumns);
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{2} * stream.caps.sm_count));
  launch_kernel(kernel, blocks, Gemm::kThreads, kBytes, stream, args);
}

template <class T>
void launch_gemms(const MoeArgs& args, const Workspace& workspace, const KernelStream& stream) {
  const int64_t rows = args.x.rows();
  const auto launch = [&]<int kRows>() {
    ExpertGemmArgs gemm{};
    gemm.num_experts = static_cast<int32_t>(args.experts.size());
    gemm.begins = workspace.parts.begins;
    gemm.order = workspace.parts.order;
    gemm.scales = workspace.parts.scales;
    const auto set = [&](LinearWeight ExpertWeights::* layer) {
      for (size_t e = 0; e < args.experts.size(); ++e) {
        gemm.weights[e] = (args.experts[e].*layer).data;
        gemm.biases[e] = (args.experts[e].*layer).bias;
      }
      gemm.n = static_cast<int32_t>((args.experts.front().*layer).out_features);
      gemm.k = static_cast<int32_t>((args.experts.front().*layer).in_features);
    };
    set(&ExpertWeights::up);
    gemm.a = args.x.data;
    gemm.lda = args.x.row_stride;
    gemm.out = workspace.inner;
    gemm.ldo = workspace.columns;
    gemm.activation = args.activation;
    launch_gemm<T, kRows, true>(gemm, rows, stream);
    set(&ExpertWeights::down);
    gemm.a = workspace.inner;
    gemm.lda = workspace.columns;
    gemm.out = args.out.data;
    gemm.ldo = args.out.row_stride;
    gemm.activation = Activation::kNone;
    launch_gemm<T, kRows, false>(gemm, rows, stream);
  };
  // A tile's height changes no bit.
  constexpr int64_t kManyRows = 64;  // for each expert
  if (rows >= kManyRows * static_cast<int64_t>(args.experts.size())) {
    launch.template operator()<128>();
  } else {
    launch.template operator()<32>();
  }
}

}  // namespace

size_t moe_workspace_bytes(const MoeArgs& args) { return Workspace(args).bytes(); }

void launch_moe(const MoeArgs& args, const KernelStream& stream) {
  const Workspace workspace(args);
  const auto blocks = block_count(args.x.rows(), kSamplers);
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(choose_experts_kernel<T>, blocks, kSamplers * 32, 0, stream, args,
                  workspace.parts, static_cast<int>(args.experts.size()));
    launch_kernel(sort_rows_kernel, 1, 1024,
                  static_cast<size_t>(args.num_classes) * sizeof(int32_t), stream, args,
                  workspace.parts);
    launch_gemms<T>(args, workspace, stream);
  });
}

void launch_add_scaled(const AddScaledArgs& args, const KernelStream& stream) {
  constexpr int kThreads = 256;
  const int64_t vectors = args.x.rows() * args.x.columns() / kVectorSize;
  if (vectors == 0) return;
  dispatch_dtype(args.x.dtype, [&]<class T>() {
    launch_kernel(add_scaled_kernel<T>, block_count(vectors, kThreads), kThreads, 0, stream, args);
  });
}

}  // namespace packhorse::cuda
