// Generates from two prompts of token ids at once, and prints the tokens of the first as they come.
//
// usage: generate FOLDER        a folder of a language model, written by `packhorse convert`
#include <packhorse/generation.h>

#include <cstdint>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: generate FOLDER\n";
    return 2;
  }
  try {
    packhorse::GenerationOptions options;
    options.kv_tokens = 1024;
    options.max_tokens = 256;
    options.max_sequences = 4;
    const auto session = packhorse::GenerationSession::load(argv[1], options);
    const packhorse::GenerationMemoryPlan& plan = session->memory_plan();
    std::cout << "memory: " << plan.total_bytes() << " bytes, of them " << plan.kv_cache.bytes
              << " for " << plan.kv_tokens << " tokens of cache\n";

    packhorse::Sampling sampling;
    sampling.max_new_tokens = 8;
    const auto first = session->submit(std::vector<int32_t>{1, 2, 3}, sampling);
    sampling.temperature = 0.8f;
    sampling.seed = 1;
    const auto second = session->submit(std::vector<int32_t>{4, 5}, sampling);

    std::cout << "first:";
    for (auto ids = first->next(); !ids.empty(); ids = first->next()) {
      for (const int32_t id : ids) std::cout << ' ' << id;
    }
    std::cout << " (" << name_of(first->finish_reason()) << ")\n";

    second->wait();
    std::cout << "second:";
    for (const int32_t id : second->result().ids) std::cout << ' ' << id;
    std::cout << "\n";
  } catch (const packhorse::Error& error) {
    std::cerr << error.message() << "\n";
    return 1;
  }
}
