#include "cpu/cpu_ops.h"

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "core/format.h"
#include "cpu/attention.h"
#include "cpu/gemm.h"
#include "cpu/gemm_int8.h"
#include "cpu/host_memory.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"
#include "cpu/linear_int8.h"
#include "cpu/row_ops.h"
#include "cpu/shared_pools.h"
#include "cpu/sparse_pool.h"
#include "packhorse/error.h"

namespace packhorse {
namespace {

class CpuOps final : public Ops {
 public:
  explicit CpuOps(const BackendOptions& options)
      : features_(cpu::cpu_features()),
        kernels_(cpu::kernels_here()),
        shared_pool_(cpu::shared_pool(options.threads, options.pin_threads)),
        pool_(*shared_pool_),
        gemms_(pool_.threads()) {}

  Device device() const override { return {DeviceType::kCpu, 0}; }

  void check_dtype(DType dtype) const override {
    if (dtype == DType::kFloat32 || dtype == DType::kInt8) return;
    if (dtype == DType::kBFloat16) {
      if (features_.bfloat16) return;
      throw RuntimeError(
          "dtype bfloat16 needs a CPU with AVX512-BF16 or AMX-BF16, which this one lacks (or "
          "ONEDNN_MAX_CPU_ISA hides): use float32");
    }
    throw RuntimeError(concat("dtype ", name_of(dtype), " is not supported on the CPU: use float32",
                              features_.bfloat16 ? ", bfloat16" : "", " or int8"));
  }
  DType activation_dtype(DType dtype) const override {
    // bfloat16 would halve what is moved, but rounding to it costs more than that is worth here.
    return dtype == DType::kInt8 ? DType::kFloat32 : dtype;
  }

  bool supports(Feature) const override { return true; }

  std::unique_ptr<DeviceMemory> allocate(size_t bytes) override {
    return cpu::allocate_host_memory(bytes);
  }
  void upload(void* device_to, const void* host_from, size_t bytes) override {
    if (bytes > 0) std::memcpy(device_to, host_from, bytes);
  }
  void download(void* host_to, const void* device_from, size_t bytes) override {
    if (bytes > 0) std::memcpy(host_to, device_from, bytes);
  }
  void synchronize() override {}

  void for_each(int64_t count, const std::function<void(int64_t)>& body) override {
    pool_.parallel_for(count, [&](int64_t i, int) { body(i); });
  }

  size_t linear_bytes(int64_t in_features, int64_t out_features, DType dtype) const override {
    check_dtype(dtype);
    if (dtype == DType::kInt8) return cpu::packed_int8_bytes(in_features, out_features);
    return cpu::packed_bytes(in_features, out_features, dtype);
  }
  void pack_linear(const float* weight, int64_t in_features, int64_t out_features, DType dtype,
                   void* packed) override {
    check_dtype(dtype);
    const Turn turn(*this);
    if (dtype == DType::kInt8) {
      cpu::pack_int8_weight(weight, in_features, out_features, packed, pool_);
    } else {
      cpu::pack_weight(weight, in_features, out_features, dtype, packed, pool_);
    }
  }
  void pack_quantized(const int8_t* weight, const float* scales, int64_t in_features,
                      int64_t out_features, void* packed) override {
    const Turn turn(*this);
    cpu::pack_int8_weight(weight, scales, in_features, out_features, packed, pool_);
  }
  int64_t head_dim_multiple() const override { return 16; }

  size_t linear_workspace(int64_t rows, int64_t in_features, int64_t out_features,
                          DType dtype) const override {
    if (dtype == DType::kInt8) {
      return cpu::linear_int8_workspace(rows, in_features, out_features, activation_dtype(dtype),
                                        pool_.threads());
    }
    return cpu::linear_workspace(rows, in_features, out_features, dtype, pool_.threads());
  }
  size_t feed_forward_workspace(int64_t rows, int64_t hidden_size, int64_t intermediate_size,
                                bool gated, DType dtype) const override {
    if (dtype == DType::kInt8) {
      return cpu::feed_forward_int8_workspace(rows, hidden_size, intermediate_size, gated,
                                              activation_dtype(dtype), pool_.threads());
    }
    return cpu::feed_forward_workspace(rows, hidden_size, intermediate_size, gated, dtype,
                                       pool_.threads());
  }
  size_t attention_workspace(int64_t, int64_t num_sequences, int64_t, int64_t, int64_t head_dim,
                             DType) const override {
    return cpu::attention_workspace(num_sequences, head_dim, pool_.threads());
  }
  size_t sparse_pool_workspace(int64_t, int64_t in_features, int64_t, bool,
                               DType dtype) const override {
    return cpu::sparse_pool_workspace(in_features, dtype, pool_.threads());
  }

 private:
  // One op at a time: the kernels and oneDNN's scratch are used by one caller.
  struct Turn {
    explicit Turn(CpuOps& ops) : lock(ops.mutex_) {}
    std::lock_guard<std::mutex> lock;
    cpu::OneThreadScope one_thread;
  };

  void do_embed(const EmbedArgs& args) override {
    check_dtype(args.out.dtype);
    const Turn turn(*this);
    cpu::embed(args, kernels_, pool_);
  }
  void do_linear(const LinearArgs& args) override {
    check_dtype(args.x.dtype);
    const Turn turn(*this);
    if (args.weight.dtype == DType::kInt8) {
      cpu::linear_int8(args, gemms_, kernels_, pool_);
    } else {
      cpu::linear(args, gemms_, kernels_, pool_);
    }
  }
  void do_feed_forward(const FeedForwardArgs& args) override {
    check_dtype(args.x.dtype);
    const Turn turn(*this);
    if (args.up.dtype == DType::kInt8) {
      cpu::feed_forward_int8(args, gemms_, kernels_, pool_);
    } else {
      cpu::feed_forward(args, gemms_, kernels_, pool_);
    }
  }
  void do_neighbours(const NeighboursArgs& args) override {
    check_dtype(args.x.dtype);
    const Turn turn(*this);
    cpu::neighbours(args, pool_);
  }
  void do_rotation(const RotationArgs& args) override {
    const Turn turn(*this);
    cpu::rotation(args, pool_);
  }
  void do_rotate_heads(const RotateHeadsArgs& args) override {
    check_dtype(args.q.dtype);
    const Turn turn(*this);
    cpu::rotate_heads(args, kernels_, pool_);
  }
  void do_attention(const AttentionArgs& args) override {
    check_dtype(args.q.dtype);
    const Turn turn(*this);
    cpu::attention(args, kernels_, pool_);
  }
  void do_norm(const NormArgs& args) override {
    check_dtype(args.x.dtype);
    const Turn turn(*this);
    cpu::norm(args, kernels_, pool_);
  }
  void do_pool(const PoolArgs& args) override {
    check_dtype(args.x.dtype);
    const Turn turn(*this);
    cpu::pool_sequences(args, kernels_, pool_);
  }
  void do_sparse_pool(const SparsePoolArgs& args) override {
    check_dtype(args.x.dtype);
    const Turn turn(*this);
    cpu::sparse_pool(args, gemms_, kernels_, pool_);
  }
  void do_cast(const CastArgs& args) override {
    check_dtype(args.x.dtype);
    check_dtype(args.out.dtype);
    const Turn turn(*this);
    cpu::cast(args, kernels_, pool_);
  }

  const cpu::CpuFeatures features_;
  const cpu::Kernels& kernels_;
  const std::shared_ptr<cpu::ThreadPool> shared_pool_;
  cpu::ThreadPool& pool_;
  cpu::GemmSet gemms_;
  std::mutex mutex_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(const BackendOptions& options) {
  return std::make_unique<CpuOps>(options);
}

}  // namespace packhorse
