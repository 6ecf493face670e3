// Measures generation by the public C++ API, of decoders of any size with random weights.
//
//   P=<site-packages>/packhorse
//   g++ -std=c++20 -O2 -I $P/include benchmarks/generation/decoders.cc -L $P/lib -lpackhorse \
//     -Wl,-rpath,$P/lib -o build/generation
//   build/generation DEVICE DTYPE MODEL WHAT  # such as: cuda bfloat16 gpt2-xl load
//
// - load: 64 requests of mixed lengths at once
// - serve: 256 requests, and steps of 256 sequences
// - prefill: prompts alone
// - mixed: prompts beside sequences that go on
// - decode: steps of single tokens
// - host: the engine's thread, and ways to choose tokens
// - plan: loads, generates, compares plan and use
// - bits: a request alone, in pieces, and among others
//
// A model may have weights in groups and a head in 8 bits (gpt-6.7b:int4-128), and a second dtype
// is that of the keys and values (bfloat16,float8).
//
// The weights are a few MiB of random numbers, which every tensor repeats as often as it needs, so
// that a model of sixty billion parameters needs neither a file nor memory of the host.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "packhorse/generation.h"
#include "random_decoders.h"

using namespace packhorse;
using namespace random_decoders;

namespace {

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

Sampling greedy(int64_t new_tokens) {
  Sampling sampling;
  sampling.max_new_tokens = new_tokens;
  sampling.ignore_eos = true;
  return sampling;
}

/// Lengths of requests: [least, most).
struct Range {
  uint32_t least, most;
};

/// So many requests at once. Ids are others in each round, so that no prefix is cached.
void measure_load(GenerationSession& session, int64_t vocab, uint32_t count, Range prompts,
                  Range outputs) {
  std::mt19937 random(0);
  std::vector<std::pair<int64_t, int64_t>> work;
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  const auto draw = [&](Range range) {
    return static_cast<int64_t>(range.least + random() % (range.most - range.least));
  };
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t prompt = draw(prompts);
    work.emplace_back(prompt, draw(outputs));
    prompt_tokens += work.back().first;
    new_tokens += work.back().second;
  }
  for (uint32_t round = 0; round < 4; ++round) {
    std::vector<std::vector<int32_t>> ids;
    for (const auto& [prompt, unused] : work) {
      ids.push_back(random_ids(prompt, vocab, round * count + static_cast<uint32_t>(ids.size())));
    }
    const GenerationStats before = session.stats();
    const double start = now();
    std::vector<std::shared_ptr<GenerationRequest>> requests;
    for (size_t i = 0; i < ids.size(); ++i) {
      requests.push_back(session.submit(ids[i], greedy(work[i].second)));
    }
    for (const auto& request : requests) request->wait();
    const double seconds = now() - start;
    std::printf("round %u: %.3f s, %ld prompt and %ld new tokens, %.0f new tokens/s; %ld steps\n",
                round, seconds, prompt_tokens, new_tokens,
                static_cast<double>(new_tokens) / seconds, session.stats().steps - before.steps);
  }
}

/// Milliseconds of a step of single tokens, by the difference of two lengths of output.
void measure_decode(GenerationSession& session, int64_t vocab, int64_t context,
                    int64_t new_tokens) {
  for (const int batch : {1, 4, 8, 16, 64, 256}) {
    // A cache that is too small would be measured instead.
    if (batch > session.options().max_sequences ||
        batch * (context + new_tokens + 64) > session.memory_plan().kv_tokens) {
      break;
    }
    double seconds[2];
    const int64_t lengths[2] = {8, new_tokens};
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < batch; ++i) {
      prompts.push_back(random_ids(context, vocab, static_cast<uint32_t>(i)));
    }
    session.generate(prompts, greedy(lengths[0]));
    for (int k = 0; k < 2; ++k) {
      const double start = now();
      session.generate(prompts, greedy(lengths[k]));
      seconds[k] = now() - start;
    }
    std::printf("decode, batch %d, context %ld: %.3f ms a step\n", batch, context,
                (seconds[1] - seconds[0]) / static_cast<double>(lengths[1] - lengths[0]) * 1e3);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Milliseconds until all of some prompts have their first token.
void measure_prefill(GenerationSession& session, int64_t vocab) {
  uint32_t seed = 1;
  for (const auto& [batch, length] :
       std::vector<std::pair<int, int64_t>>{{1, 128}, {1, 512}, {4, 512}, {16, 512}, {1, 2000}}) {
    if (length >= session.max_context()) continue;
    std::vector<double> seconds;
    for (int round = 0; round < 12; ++round) {
      std::vector<std::vector<int32_t>> prompts;
      for (int i = 0; i < batch; ++i) prompts.push_back(random_ids(length, vocab, ++seed));
      const double start = now();
      session.generate(prompts, greedy(1));
      if (round > 1) seconds.push_back(now() - start);
    }
    std::printf("prefill of %d x %ld: %.3f ms\n", batch, length, median(seconds) * 1e3);
  }
}

/// Cost of prompts that come while 16 sequences go on: the time of both together, over that of the
/// sequences alone and the prompts alone.
void measure_mixed(GenerationSession& session, int64_t vocab) {
  uint32_t seed = 1;
  for (const int64_t length : {512, 2000}) {
    const int64_t new_tokens = 160;
    const auto sequences = [&] {
      std::vector<std::shared_ptr<GenerationRequest>> requests;
      for (int i = 0; i < 16; ++i) {
        const int64_t context = length == 512 ? 1000 : 1800;
        requests.push_back(session.submit(random_ids(context, vocab, ++seed), greedy(new_tokens)));
      }
      // They go on when all have a token.
      for (const auto& request : requests) request->next();
      return requests;
    };
    // One prompt after the other.
    const auto prompts = [&](int count) {
      for (int i = 0; i < count; ++i) {
        session.submit(random_ids(length, vocab, ++seed), greedy(1))->wait();
      }
    };
    std::vector<double> ratios, both, apart;
    for (int round = 0; round < 6; ++round) {
      const int count = 12;
      auto running = sequences();
      double start = now();
      for (const auto& request : running) request->wait();
      const double alone = now() - start;
      start = now();
      prompts(count);
      const double prefill = now() - start;
      running = sequences();
      start = now();
      prompts(count);
      for (const auto& request : running) request->wait();
      const double together = now() - start;
      if (round == 0) continue;
      both.push_back(together);
      apart.push_back(alone + prefill);
      ratios.push_back(together / (alone + prefill));
    }
    std::printf("%d prompts of %ld beside 16 sequences: %.2f ms, apart %.2f ms, %.3fx\n", 12,
                length, median(both) * 1e3, median(apart) * 1e3, median(ratios));
  }
}

/// Microseconds of a step of single tokens by how they are chosen, and of those the part of the
/// engine's thread without its waits. Where that is less than the step, the device goes from step
/// to step without a pause.
void measure_host(GenerationSession& session, int64_t vocab) {
  std::vector<std::pair<const char*, Sampling>> choices(6, {"greedy", greedy(400)});
  for (size_t i = 1; i < choices.size(); ++i) choices[i].second.seed = 1;
  for (size_t i = 1; i < choices.size() - 1; ++i) choices[i].second.temperature = 0.8f;
  choices[1].first = "drawn";
  choices[2].first = "top_k 50";
  choices[2].second.top_k = 50;
  choices[3].first = "top_p 0.95";
  choices[3].second.top_p = 0.95f;
  choices[4].first = "min_p 0.05";
  choices[4].second.min_p = 0.05f;
  choices[5].first = "greedy, 5 log-probabilities";
  choices[5].second.logprobs = 5;
  for (const int batch : {1, 8, 64}) {
    if (batch > session.options().max_sequences) break;
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < batch; ++i) {
      prompts.push_back(random_ids(8, vocab, static_cast<uint32_t>(i)));
    }
    for (const auto& [name, sampling] : choices) {
      const GenerationStats before = session.stats();
      const double start = now();
      session.generate(prompts, sampling);
      const double seconds = now() - start;
      const GenerationStats after = session.stats();
      const auto steps = static_cast<double>(after.steps - before.steps);
      std::printf("%d requests, %s: %.1f us of the host, %.1f us in all a step\n", batch, name,
                  (after.host_s - before.host_s) / steps * 1e6, seconds / steps * 1e6);
    }
  }
}

/// A request's tokens and log-probabilities alone, in steps of other sizes, among others, and from
/// the prefix cache: the same bits.
bool check_bits(const std::string& spec, const RandomWeights& weights, GenerationOptions options,
                int64_t vocab) {
  Sampling sampling = greedy(100);
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
  const Shape shape = argc > 3 ? find_shape(argv[3]) : Shape{};
  if (argc < 5 || shape.layers == 0) {
    std::fprintf(
        stderr,
        "usage: %s DEVICE DTYPE[,CACHE_DTYPE] SHAPE load|serve|prefill|mixed|decode|host|bits|plan "
        "[kv_tokens [context [new_tokens]]]\n",
        argv[0]);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // each line at once, also where it goes to a file
  const std::string what = argv[4];
  const std::string spec = spec_of(shape);
  const auto number = [&](int index, int64_t otherwise) -> int64_t {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  GenerationOptions options;
  options.device = parse_device(argv[1]);
  const std::string dtypes = argv[2];
  const size_t comma = dtypes.find(',');
  options.dtype = parse_dtype(dtypes.substr(0, comma));
  if (comma != std::string::npos) options.kv_cache_dtype = parse_dtype(dtypes.substr(comma + 1));
  options.kv_tokens = number(5, what == "serve" ? 400000 : 65536);
  if (what == "serve") options.max_sequences = 256;
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
  if (what == "load") measure_load(*session, shape.vocab, 64, {16, 1025}, {16, 257});
  if (what == "serve") {
    measure_load(*session, shape.vocab, 256, {64, 2049}, {64, 513});
    measure_decode(*session, shape.vocab, 1056, 72);
  }
  if (what == "prefill") measure_prefill(*session, shape.vocab);
  if (what == "mixed") measure_mixed(*session, shape.vocab);
  if (what == "host") measure_host(*session, shape.vocab);
  if (what == "decode") {
    const int64_t new_tokens = number(7, 72);
    const int64_t context = std::min(shape.context - new_tokens, number(6, 1024));
    measure_decode(*session, shape.vocab, context, new_tokens);
  }
  if (what == "plan") {
    const int64_t longest = std::min(shape.context, plan.kv_tokens) - 40;
    const std::vector<std::vector<int32_t>> prompts = {random_ids(5, shape.vocab, 1),
                                                       random_ids(longest, shape.vocab, 2)};
    std::printf("generating from prompts of 5 and %ld tokens\n", longest);
    const double begin = now();
    const auto found = session->generate(prompts, greedy(32));
    std::printf("prompts of 5 and %ld tokens, %zu and %zu new ones, %s%s, in %.2f s\n", longest,
                found[0][0].ids.size(), found[1][0].ids.size(), name_of(found[1][0].finish_reason),
                found[1][0].error.c_str(), now() - begin);
    // Shows the memory in use, measured by another program.
    std::system("nvidia-smi --query-gpu=memory.used --format=csv 2>/dev/null");
  }
  return 0;
}
