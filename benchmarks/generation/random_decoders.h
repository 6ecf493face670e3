// Decoders of any size with random weights, for benchmarks of generation.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "packhorse/generation.h"

namespace random_decoders {

using namespace packhorse;

struct Shape {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
  bool llama = false;  // RMS norms, rotation and a gated feed-forward block; else as GPT-2
  int bits = 0;        // 4 or 8: layers of blocks are quantised in groups, the head in 8 bits
  int64_t group = 0;
};

inline const std::map<std::string, Shape> kShapes = {
    {"tiny", {2, 64, 4, 2, 16, 128, 300, 512, true}},
    {"gpt2", {12, 768, 12, 12, 64, 3072, 50257, 1024}},
    {"gpt2-xl", {48, 1600, 25, 25, 64, 6400, 50257, 2048}},
    {"llama-1b", {16, 2048, 32, 8, 64, 8192, 128256, 131072, true}},
    {"llama-8b", {32, 4096, 32, 8, 128, 14336, 128256, 131072, true}},
    {"qwen3-8b", {36, 4096, 32, 8, 128, 12288, 151936, 40960, true}},
    {"gpt-6.7b", {32, 4096, 32, 32, 128, 16384, 50257, 2048}},
    {"gpt-13b", {40, 5120, 40, 40, 128, 20480, 50257, 2048}},
    {"gpt-12288", {8, 12288, 96, 96, 128, 49152, 50257, 2048}},
    {"gpt-18b", {40, 6144, 48, 48, 128, 24576, 50257, 2048}},
    {"gpt-60b", {74, 8192, 64, 64, 128, 32768, 50257, 2048}},
    {"wide", {2, 16384, 128, 8, 128, 16384, 262144, 131072, true}},
};

/// By its name in kShapes; or "gpt-LAYERSxWIDTHxHEADS", GPT-2's with so many. With ":int4-128" or
/// the like behind it, the weights are quantised in groups of so many. Null layers: unknown.
inline Shape find_shape(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon != name.npos) {
    Shape shape = find_shape(name.substr(0, colon));
    long group = 0;
    if (std::sscanf(name.c_str() + colon, ":int%d-%ld", &shape.bits, &group) != 2) return {};
    shape.group = group;
    return shape;
  }
  const auto found = kShapes.find(name);
  if (found != kShapes.end()) return found->second;
  long layers, hidden, heads;
  if (std::sscanf(name.c_str(), "gpt-%ldx%ldx%ld", &layers, &hidden, &heads) != 3) return {};
  return {layers, hidden, heads, heads, hidden / heads, 4 * hidden, 50257, 2048};
}

inline constexpr int64_t kHeadGroup = 32;

/// The field "quantized" of a spec: all layers of blocks, and the head.
inline std::string quantized_of(const Shape& s) {
  const auto entry = [](int bits, int64_t group, const std::string& layers) {
    return R"({"bits": )" + std::to_string(bits) + R"(, "group": )" + std::to_string(group) +
           R"(, "minima": false, "layers": [)" + layers + "]}";
  };
  std::string layers;
  for (int64_t i = 0; i < s.layers; ++i) {
    for (const char* name : {"attention.query", "attention.key", "attention.value",
                             "attention.output", "ffn.gate", "ffn.up", "ffn.down"}) {
      if (!s.llama && std::strcmp(name, "ffn.gate") == 0) continue;
      if (!layers.empty()) layers += ", ";
      layers += "\"layers." + std::to_string(i) + "." + name + "\"";
    }
  }
  return "[" + entry(s.bits, s.group, layers) + ", " + entry(8, kHeadGroup, "\"lm.decoder\"") + "]";
}

inline std::string spec_of(const Shape& s) {
  char text[2048];
  std::snprintf(
      text, sizeof(text),
      R"({"format": 1, "family": "random", "vocab_size": %ld, "hidden_size": %ld, "num_layers": %ld,
  "num_heads": %ld, "num_kv_heads": %ld, "head_dim": %ld, "intermediate_size": %ld,
  "max_seqlen": %ld, "positions": %s,
  "norm": {"kind": "%s", "placement": "pre", "eps": 1e-5, "embeddings": false},
  "attention": {"mask": "causal", "qkv_bias": %s, "output_bias": %s%s},
  "ffn": {"kind": "%s", "activation": "%s", "up_bias": %s, "down_bias": %s},
  "heads": {"lm": {"tied": true}}, "embedding": {"pooling": "last", "normalize": false}})",
      s.vocab, s.hidden, s.layers, s.heads, s.kv_heads, s.head_dim, s.ffn, s.context,
      s.llama
          ? R"({"kind": "none"})"
          : (R"({"kind": "learned", "count": )" + std::to_string(s.context) + R"(, "offset": 0})")
                .c_str(),
      s.llama ? "rms" : "layer", s.llama ? "false" : "true", s.llama ? "false" : "true",
      s.llama ? R"(, "rope": {"theta": 500000.0})" : "", s.llama ? "gated" : "plain",
      s.llama ? "silu" : "gelu_tanh", s.llama ? "false" : "true", s.llama ? "false" : "true");
  std::string spec = text;
  if (s.bits != 0) spec.insert(spec.rfind('}'), ", \"quantized\": " + quantized_of(s));
  return spec;
}

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Random bfloat16 numbers that repeat: the same pages of memory, mapped one after the other as
/// often as the asked number of elements needs. The number of pages is a prime, so that the rows of
/// a matrix do not repeat with it.
class RepeatedNumbers {
 public:
  explicit RepeatedNumbers(int64_t elements) {
    constexpr size_t kPages = 8191;
    const size_t period = kPages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = static_cast<size_t>(elements) * sizeof(uint16_t);
    bytes_ = (bytes + period - 1) / period * period;
    const int memory = memfd_create("random", 0);
    require(memory >= 0 && ftruncate(memory, static_cast<off_t>(period)) == 0, "memfd_create");
    data_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(data_ != MAP_FAILED, "mmap");
    for (size_t at = 0; at < bytes_; at += period) {
      require(mmap(static_cast<char*>(data_) + at, period, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, memory, 0) != MAP_FAILED,
              "mmap");
    }
    close(memory);
    // Numbers around 0.02 in size, by a cheap generator: what counts is that they differ.
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < period / sizeof(uint16_t); ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const float number = (static_cast<float>(state >> 40) / 16777216.0f - 0.5f) * 0.06f;
      uint32_t bits;
      std::memcpy(&bits, &number, sizeof(bits));
      static_cast<uint16_t*>(data_)[i] = static_cast<uint16_t>(bits >> 16);
    }
  }
  ~RepeatedNumbers() { munmap(data_, bytes_); }
  RepeatedNumbers(const RepeatedNumbers&) = delete;
  RepeatedNumbers& operator=(const RepeatedNumbers&) = delete;

  void* data() const { return data_; }

 private:
  static void require(bool condition, const char* what) {
    if (condition) return;
    std::perror(what);
    std::exit(1);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// A matrix that is quantised in groups, with random values and one scale, as a model's files have
/// it: rows of values and of scales.
inline std::vector<uint8_t> random_groups(int64_t rows, int64_t columns, int bits, int64_t group) {
  const int64_t value_bytes = columns * bits / 8;
  const int64_t scales = (columns + group - 1) / group;
  std::vector<uint8_t> pool(1 << 20);
  uint64_t state = 88172645463325252u;
  for (uint8_t& byte : pool) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<uint8_t>(state >> 32);
  }
  const uint16_t scale = bits == 4 ? 0x1c19 : 0x0bae;  // values up to about 0.03
  std::vector<uint8_t> result(static_cast<size_t>(rows * (value_bytes + 2 * scales)));
  uint8_t* to = result.data();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t at = 0, from = row * 7919; at < value_bytes;) {
      const auto size = static_cast<int64_t>(pool.size());
      const int64_t count = std::min(value_bytes - at, size - from % size);
      std::memcpy(to + at, pool.data() + from % size, static_cast<size_t>(count));
      at += count;
      from += count;
    }
    to += value_bytes;
    for (int64_t i = 0; i < scales; ++i, to += 2) std::memcpy(to, &scale, 2);
  }
  return result;
}

/// Tensors by our names; all matrices of floats begin in the same block of numbers, and matrices
/// that are quantised in groups are the same where their sizes are.
class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(const Shape& s) {
    const int64_t q = s.heads * s.head_dim;
    const int64_t kv = s.kv_heads * s.head_dim;
    const auto norm = [&](const std::string& name) {
      add(name + ".weight", {s.hidden}, true);
      if (!s.llama) add(name + ".bias", {s.hidden});
    };
    const auto dense = [&](const std::string& name, int64_t out, int64_t in) {
      s.bits == 0 ? add(name + ".weight", {out, in})
                  : add_groups(name + ".weight", out, in, s.bits, s.group);
      if (!s.llama) add(name + ".bias", {out});
    };
    add("embeddings.word", {s.vocab, s.hidden});
    if (!s.llama) add("embeddings.position", {s.context, s.hidden});
    for (int64_t i = 0; i < s.layers; ++i) {
      const std::string layer = "layers." + std::to_string(i);
      dense(layer + ".attention.query", q, s.hidden);
      dense(layer + ".attention.key", kv, s.hidden);
      dense(layer + ".attention.value", kv, s.hidden);
      dense(layer + ".attention.output", s.hidden, q);
      norm(layer + ".attention.norm");
      if (s.llama) dense(layer + ".ffn.gate", s.ffn, s.hidden);
      dense(layer + ".ffn.up", s.ffn, s.hidden);
      dense(layer + ".ffn.down", s.hidden, s.ffn);
      norm(layer + ".ffn.norm");
    }
    norm("final_norm");
    if (s.bits != 0) add_groups("lm.decoder.weight", s.vocab, s.hidden, 8, kHeadGroup);
    numbers_ = std::make_unique<RepeatedNumbers>(largest_);
    ones_.assign(static_cast<size_t>(s.hidden), 0x3f80);
  }

  TensorView find(const std::string& name) const override {
    const auto quantized = quantized_.find(name);
    if (quantized != quantized_.end()) {
      const auto& [rows, bytes] = quantized->second;
      return TensorView(const_cast<uint8_t*>(bytes->data()), DType::kUInt8, rows,
                        static_cast<int64_t>(bytes->size()) / rows);
    }
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {};
    const auto& [shape, one] = found->second;
    void* data = one ? const_cast<uint16_t*>(ones_.data()) : numbers_->data();
    return shape.size() == 1 ? TensorView(data, DType::kBFloat16, shape[0])
                             : TensorView(data, DType::kBFloat16, shape[0], shape[1]);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const auto& [name, tensor] : tensors_) result.push_back(name);
    for (const auto& [name, tensor] : quantized_) result.push_back(name);
    return result;
  }
  /// Says how much has been read, every two seconds. Threads of the load call it.
  void release(const void*, size_t bytes) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    read_ += bytes;
    if (now() - reported_ < 2) return;
    reported_ = now();
    std::printf("  %.1f GB read after %.0f s\n", static_cast<double>(read_) / 1e9,
                reported_ - made_);
  }
  int64_t parameters() const { return parameters_; }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, bool one = false) {
    int64_t size = 1;
    for (int64_t n : shape) size *= n;
    parameters_ += size;
    if (!one) largest_ = std::max(largest_, size);
    tensors_[name] = {std::move(shape), one};
  }

  void add_groups(const std::string& name, int64_t out, int64_t in, int bits, int64_t group) {
    parameters_ += out * in;
    auto& bytes = groups_[{out, in}];
    if (bytes.empty()) bytes = random_groups(out, in, bits, group);
    quantized_[name] = {out, &bytes};
  }

  std::map<std::string, std::pair<std::vector<int64_t>, bool>> tensors_;
  std::map<std::pair<int64_t, int64_t>, std::vector<uint8_t>> groups_;  // by rows and columns
  std::map<std::string, std::pair<int64_t, const std::vector<uint8_t>*>> quantized_;
  int64_t largest_ = 0;
  int64_t parameters_ = 0;
  std::unique_ptr<RepeatedNumbers> numbers_;
  std::vector<uint16_t> ones_;
  const double made_ = now();
  mutable std::mutex mutex_;
  mutable size_t read_ = 0;
  mutable double reported_ = now();
};

}  // namespace random_decoders
