// Loads decoders of any size with random weights, and measures generation by the public C++ API.
//
//   P=<site-packages>/packhorse
//   g++ -std=c++20 -O2 -I $P/include benchmarks/generation.cc -L $P/lib -lpackhorse \
//     -Wl,-rpath,$P/lib -o build/generation
//   build/generation cuda bfloat16 gpt2-xl load    # 64 requests of mixed lengths at once
//   build/generation cuda bfloat16 gpt2-xl host    # what a step costs the engine's thread
//   build/generation cuda bfloat16 gpt-18b plan    # loads, generates, compares plan and use
//   build/generation cuda bfloat16 llama-1b bits   # a request alone, in pieces, and among others
//
// The weights are a few MiB of random numbers, which every tensor repeats as often as it needs, so
// that a model of sixty billion parameters needs neither a file nor memory of the host.
#include "packhorse/generation.h"

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
#include <random>
#include <string>
#include <vector>

using namespace packhorse;

namespace {

struct Shape {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
  bool llama = false;  // RMS norms, rotation and a gated feed-forward block; else as GPT-2
};

const std::map<std::string, Shape> kShapes = {
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

std::string spec_of(const Shape& s) {
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
  return text;
}

double now() {
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

/// Tensors by our names; all matrices begin in the same block of numbers.
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
      add(name + ".weight", {out, in});
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
    numbers_ = std::make_unique<RepeatedNumbers>(largest_);
    ones_.assign(static_cast<size_t>(s.hidden), 0x3f80);
  }

  TensorView find(const std::string& name) const override {
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

  std::map<std::string, std::pair<std::vector<int64_t>, bool>> tensors_;
  int64_t largest_ = 0;
  int64_t parameters_ = 0;
  std::unique_ptr<RepeatedNumbers> numbers_;
  std::vector<uint16_t> ones_;
  const double made_ = now();
  mutable std::mutex mutex_;
  mutable size_t read_ = 0;
  mutable double reported_ = now();
};

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

/// 64 requests: prompts of 16 to 1024 tokens, 16 to 256 new ones.
void measure_load(GenerationSession& session, int64_t vocab) {
  std::mt19937 random(0);
  std::vector<std::pair<std::vector<int32_t>, int64_t>> work;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  for (uint32_t i = 0; i < 64; ++i) {
    work.push_back({random_ids(16 + random() % 1009, vocab, i), 16 + random() % 241});
    prompt_tokens += static_cast<int64_t>(work.back().first.size());
    new_tokens += work.back().second;
  }
  for (int round = 0; round < 4; ++round) {
    const double start = now();
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    for (const auto& [ids, count] : work) {
      Sampling sampling;
      sampling.max_new_tokens = count;
      sampling.ignore_eos = true;
      requests.push_back(session.submit(ids, sampling));
    }
    for (const auto& request : requests) request->wait();
    const double seconds = now() - start;
    const GenerationStats stats = session.stats();
    std::printf("round %d: %.3f s, %ld prompt and %ld new tokens, %.0f new tokens/s; %ld steps\n",
                round, seconds, prompt_tokens, new_tokens,
                static_cast<double>(new_tokens) / seconds, stats.steps);
  }
}

/// Milliseconds of a step of single tokens, by the difference of two lengths of output.
void measure_decode(GenerationSession& session, int64_t vocab, int64_t context) {
  for (const int batch : {1, 4, 16, 64}) {
    // A cache that is too small would be measured instead.
    if (batch > session.options().max_sequences ||
        batch * (context + 128) > session.memory_plan().kv_tokens) {
      break;
    }
    double seconds[2];
    const int64_t lengths[2] = {8, 72};
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < batch; ++i) {
      prompts.push_back(random_ids(context, vocab, static_cast<uint32_t>(i)));
    }
    for (int warm = 0; warm < 2; ++warm) {
      for (int k = 0; k < 2; ++k) {
        Sampling sampling;
        sampling.max_new_tokens = lengths[k];
        sampling.ignore_eos = true;
        const double start = now();
        session.generate(prompts, sampling);
        seconds[k] = now() - start;
      }
    }
    std::printf("decode, batch %d, context %ld: %.3f ms a step\n", batch, context,
                (seconds[1] - seconds[0]) / static_cast<double>(lengths[1] - lengths[0]) * 1e3);
  }
}

/// Microseconds of the engine's thread for a step of single tokens, without its waits. Where they
/// are fewer than those of the step itself, the device goes from step to step without a pause.
void measure_host(GenerationSession& session, int64_t vocab) {
  for (const int batch : {1, 8, 64}) {
    if (batch > session.options().max_sequences) break;
    for (const bool draws : {false, true}) {
      std::vector<std::vector<int32_t>> prompts;
      for (int i = 0; i < batch; ++i) {
        prompts.push_back(random_ids(8, vocab, static_cast<uint32_t>(i)));
      }
      Sampling sampling;
      sampling.max_new_tokens = 400;
      sampling.ignore_eos = true;
      sampling.seed = 1;
      if (draws) sampling.temperature = 0.8f;
      const GenerationStats before = session.stats();
      const double start = now();
      session.generate(prompts, sampling);
      const double seconds = now() - start;
      const GenerationStats after = session.stats();
      const auto steps = static_cast<double>(after.steps - before.steps);
      std::printf("%d requests, %s: %.1f us of the host, %.1f us in all a step\n", batch,
                  draws ? "drawn" : "greedy", (after.host_s - before.host_s) / steps * 1e6,
                  seconds / steps * 1e6);
    }
  }
}

/// A request's tokens and log-probabilities alone, in steps of other sizes, among others, and from
/// the prefix cache: the same bits.
bool check_bits(const std::string& spec, const RandomWeights& weights, GenerationOptions options,
                int64_t vocab) {
  Sampling sampling;
  sampling.max_new_tokens = 100;
  sampling.ignore_eos = true;
  sampling.logprobs = 3;
  std::vector<GeneratedSequence> first;
  bool same = true;
  const std::vector<int64_t> lengths = {1, 63, 64, 65, 511, 513, 700, 1500};
  for (const int64_t budget : {4096, 100, 17}) {
    options.max_tokens = budget;
    options.max_sequences = std::min<int64_t>(16, budget);
    const auto session = GenerationSession::load(spec, weights, options);
    for (const bool together : {false, true, true}) {
      std::vector<std::vector<int32_t>> prompts;
      for (const int64_t n : lengths) {
        if (n + 100 <= session->max_context()) {
          prompts.push_back(random_ids(n, vocab, static_cast<uint32_t>(n)));
        }
      }
      std::vector<GeneratedSequence> found;
      if (together) {
        for (auto& result : session->generate(prompts, sampling)) found.push_back(result[0]);
      } else {
        for (auto& ids : prompts) found.push_back(session->generate({&ids, 1}, sampling)[0][0]);
      }
      if (first.empty()) first = found;
      for (size_t i = 0; i < found.size(); ++i) {
        if (!found[i].error.empty()) std::printf("error: %s\n", found[i].error.c_str());
        const bool equal = found[i].ids == first[i].ids &&
                           std::memcmp(found[i].logprobs.data(), first[i].logprobs.data(),
                                       first[i].logprobs.size() * sizeof(float)) == 0;
        if (!equal) {
          size_t at = 0;
          while (at < found[i].ids.size() && found[i].ids[at] == first[i].ids[at] &&
                 found[i].logprobs[at] == first[i].logprobs[at]) {
            ++at;
          }
          std::printf("DIFFERENT: budget %ld, %s, prompt of %zu, at token %zu\n", budget,
                      together ? "together" : "alone", prompts[i].size(), at);
        }
        same &= equal;
      }
    }
    std::printf("budget %ld: %ld prefix hits, %ld preemptions\n", budget,
                session->stats().prefix_hit_tokens, session->stats().preemptions);
  }
  std::printf("%s\n", same ? "all bits equal" : "BITS DIFFER");
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || kShapes.count(argv[3]) == 0) {
    std::fprintf(stderr,
                 "usage: %s DEVICE DTYPE SHAPE load|decode|host|bits|plan [kv_tokens [context]]\n",
                 argv[0]);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // each line at once, also where it goes to a file
  const Shape shape = kShapes.at(argv[3]);
  const std::string what = argv[4];
  const std::string spec = spec_of(shape);
  GenerationOptions options;
  options.device = parse_device(argv[1]);
  options.dtype = parse_dtype(argv[2]);
  options.kv_tokens = argc > 5 ? std::atoll(argv[5]) : 65536;
  const RandomWeights weights(shape);
  std::printf("%s: %.2f billion parameters\n", argv[3],
              static_cast<double>(weights.parameters()) / 1e9);
  if (what == "bits") return check_bits(spec, weights, options, shape.vocab) ? 0 : 1;
  const double start = now();
  const auto session = GenerationSession::load(spec, weights, options);
  const GenerationMemoryPlan& plan = session->memory_plan();
  std::printf("loaded in %.1f s; weights %.3f GB, arena %.3f GB, cache %.3f GB of %ld tokens\n",
              now() - start, static_cast<double>(plan.weights.bytes) / 1e9,
              static_cast<double>(plan.arena.bytes) / 1e9,
              static_cast<double>(plan.kv_cache.bytes) / 1e9, plan.kv_tokens);
  if (what == "load") measure_load(*session, shape.vocab);
  if (what == "host") measure_host(*session, shape.vocab);
  if (what == "decode") {
    const int64_t context = argc > 6 ? std::atoll(argv[6]) : 1024;
    measure_decode(*session, shape.vocab, std::min(shape.context - 100, context));
  }
  if (what == "plan") {
    Sampling sampling;
    sampling.max_new_tokens = 32;
    sampling.ignore_eos = true;
    const int64_t longest = std::min(shape.context, plan.kv_tokens) - 40;
    const std::vector<std::vector<int32_t>> prompts = {random_ids(5, shape.vocab, 1),
                                                       random_ids(longest, shape.vocab, 2)};
    std::printf("generating from prompts of 5 and %ld tokens\n", longest);
    const double begin = now();
    const auto found = session->generate(prompts, sampling);
    std::printf("prompts of 5 and %ld tokens, %zu and %zu new ones, %s%s, in %.2f s\n", longest,
                found[0][0].ids.size(), found[1][0].ids.size(), name_of(found[1][0].finish_reason),
                found[1][0].error.c_str(), now() - begin);
    // What the device says is in use, by a tool beside.
    std::system("nvidia-smi --query-gpu=memory.used --format=csv 2>/dev/null");
  }
  return 0;
}
