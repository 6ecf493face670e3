// Tests which graphs a CUDA session makes and which one a batch gets. Runs without a GPU.
#include <functional>
#include <vector>

#include "cuda/device/graph_bounds.h"
#include "session/graph_cache.h"
#include "test.h"

using namespace packhorse;

namespace {

// A device that remembers launches by the bounds of the graph.
class FakeDevice final : public DeviceContext {
 public:
  struct Launch {
    GraphBounds bounds;
    bool has_type_ids;
  };

  Device device() const override { return {DeviceType::kCuda, 0}; }
  std::unique_ptr<DeviceMemory> allocate(size_t) override { return nullptr; }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  void copy(std::span<const DeviceCopy>) override {}
  size_t free_bytes() const override { return 0; }
  std::unique_ptr<UploadBuffer> make_upload_buffer(void*, size_t) override { return nullptr; }
  std::unique_ptr<InputUpload> make_input_upload(void*, size_t) override { return nullptr; }
  std::unique_ptr<HostDeviceRing> make_ring(void*, size_t, const void*, size_t) override {
    return nullptr;
  }
  void synchronize() override {}
  int64_t balanced_rows() const override { return 1; }
  double elapsed_ms(const std::function<void()>&) override { return 0; }
  std::vector<GraphBounds> graph_bounds(int64_t max_tokens, int64_t max_seqlen) const override {
    return cuda::graph_bounds(max_tokens, max_seqlen, warps);
  }
  std::unique_ptr<DeviceGraph> record(const std::function<void()>& work) override {
    work();
    return std::make_unique<FakeGraph>(*this, recorded);
  }

  bool warps = false;
  Launch recorded = {};  // what the last `work` recorded
  std::vector<Launch> launches;

 private:
  struct FakeGraph final : DeviceGraph {
    FakeGraph(FakeDevice& of, const Launch& what) : device(of), launched(what) {}
    void launch() override { device.launches.push_back(launched); }
    FakeDevice& device;
    Launch launched;
  };
};

}  // namespace

TEST(recording_bounds_are_close_and_reach_the_plan) {
  const auto bounds = cuda::graph_bounds(1000, 512, false);
  CHECK(bounds.front().num_tokens == 16 && bounds.front().max_seqlen == 16);
  CHECK(bounds.back().num_tokens == 1000 && bounds.back().max_seqlen == 512);
  for (size_t i = 1; i < bounds.size(); ++i) {
    const auto& before = bounds[i - 1];
    CHECK(before.num_tokens < bounds[i].num_tokens || before.max_seqlen < bounds[i].max_seqlen);
    if (before.num_tokens >= 128) CHECK(bounds[i].num_tokens * 8 <= before.num_tokens * 9);
  }
  CHECK(cuda::graph_bounds(5, 512, false).size() == 1);
}

TEST(every_batch_gets_the_smallest_recording_that_holds_it) {
  for (const auto& [max_tokens, max_seqlen] :
       {std::pair<int64_t, int64_t>{1000, 512}, {700, 100}, {5, 512}, {300, 1000}}) {
    FakeDevice device;
    GraphCache graphs;
    graphs.record(device, max_tokens, max_seqlen, /*takes_type_ids=*/true,
                  [&](const GraphBounds& bounds, bool has_type_ids) {
                    device.recorded = {bounds, has_type_ids};
                  });
    for (int64_t tokens = 0; tokens <= max_tokens; ++tokens) {
      for (const int64_t longest : {int64_t{1}, int64_t{100}, int64_t{128}, int64_t{129}}) {
        if (longest > std::min(tokens, max_seqlen)) continue;
        const bool has_type_ids = tokens % 2 == 0;
        CHECK(graphs.launch({tokens, longest}, has_type_ids));
        const auto [bounds, types] = device.launches.back();
        CHECK(types == has_type_ids);
        CHECK(bounds.num_tokens >= tokens && bounds.max_seqlen >= longest);
        CHECK(bounds.num_tokens <= std::max<int64_t>(16, 2 * tokens));
        if (longest <= cuda::kShortSequence) CHECK(bounds.max_seqlen <= cuda::kShortSequence);
      }
    }
    CHECK(!graphs.launch({max_tokens + 1, 1}, false));
  }
}

TEST(batches_get_recordings_of_the_kernels_that_they_need) {
  FakeDevice device;
  device.warps = true;
  GraphCache graphs;
  graphs.record(device, 1000, 512, /*takes_type_ids=*/false,
                [&](const GraphBounds& bounds, bool) { device.recorded = {bounds, false}; });
  constexpr int64_t kMost = cuda::kWarpTokens;
  for (int64_t tokens = 1; tokens <= 1000; ++tokens) {
    for (const int64_t longest : {int64_t{1}, kMost, kMost + 1, int64_t{128}, int64_t{129}}) {
      if (longest > tokens) continue;
      // 0: lengths that only the device knows.
      for (const int64_t shortest : {int64_t{0}, int64_t{1}, kMost, kMost + 1, longest}) {
        if (shortest > longest) continue;
        CHECK(graphs.launch({tokens, longest, shortest}, false));
        const GraphBounds& found = device.launches.back().bounds;
        CHECK(found.num_tokens >= tokens && found.num_tokens <= std::max<int64_t>(16, 2 * tokens));
        CHECK(found.max_seqlen >= longest && found.min_seqlen <= shortest);
        // Neither kernel is launched for nothing where the host knows the lengths.
        CHECK((found.max_seqlen <= kMost) == (longest <= kMost));
        if (longest > kMost) CHECK((found.min_seqlen > kMost) == (shortest > kMost));
        if (longest <= cuda::kShortSequence) CHECK(found.max_seqlen <= cuda::kShortSequence);
      }
    }
  }
  CHECK(cuda::graph_bounds(20, 512, true).size() == 2);
  CHECK(cuda::graph_bounds(1000, 20, true).size() == cuda::graph_bounds(1000, 20, false).size());
}

TEST(models_without_type_ids_have_no_recordings_with_them) {
  FakeDevice device;
  GraphCache graphs;
  graphs.record(device, 100, 100, false, [](const GraphBounds&, bool) {});
  CHECK(graphs.launch({10, 10}, false));
  CHECK(!graphs.launch({10, 10}, true));
}
