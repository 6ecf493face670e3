// Captures CUDA graphs and launches them.
#include "cuda/device/graph.h"

#include "cuda/device/check.h"

namespace packhorse::cuda {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream)
      : executable_(instantiate(graph), cudaGraphExecDestroy), stream_(stream) {
    // Uploads now; else the first launch would upload the graph, and take longer.
    CUDA_CHECK(cudaGraphUpload(executable_.get(), stream));
  }

  void launch() override { CUDA_CHECK(cudaGraphLaunch(executable_.get(), stream_)); }

 private:
  static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    return executable;
  }

  std::unique_ptr<CUgraphExec_st, cudaError_t (*)(cudaGraphExec_t)> executable_;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<DeviceGraph> capture_graph(cudaStream_t stream, const std::function<void()>& work) {
  cudaGraph_t captured = nullptr;
  // The mode is thread-local, so that other threads may do meanwhile what a capture does not allow,
  // such as load a model for another session.
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    if (captured != nullptr) cudaGraphDestroy(captured);
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(stream, &captured));
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> graph(captured, cudaGraphDestroy);
  return std::make_unique<CudaGraph>(graph.get(), stream);
}

}  // namespace packhorse::cuda
