// Embeds three packed sequences, one of them empty, and prints the length of each embedding.
//
// usage: embed FOLDER        a folder written by `packhorse convert`
#include <packhorse/session.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: embed FOLDER\n";
    return 2;
  }
  try {
    packhorse::SessionOptions options;
    options.max_tokens = 64;
    options.max_sequences = 4;
    const auto session = packhorse::Session::load(argv[1], options);
    std::cout << "memory: " << session->memory_plan().total_bytes() << " bytes\n";

    // One array holds the token ids of all sequences, the other the offset where each sequence
    // begins.
    const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7};
    const std::vector<int32_t> cu_seqlens = {0, 5, 5, 7};
    const packhorse::PackedTokens batch{ids, cu_seqlens, {}, {}};

    const auto width = static_cast<size_t>(session->embedding_size());
    std::vector<float> embedding(static_cast<size_t>(batch.num_sequences()) * width);
    session->run(batch, {.hidden = nullptr, .embedding = embedding.data(), .pooled = nullptr});

    for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
      double sum = 0;
      for (size_t i = 0; i < width; ++i) sum += std::pow(embedding[b * width + i], 2);
      std::cout << "sequence " << b << ": " << cu_seqlens[b + 1] - cu_seqlens[b] << " tokens, norm "
                << std::sqrt(sum) << "\n";
    }
  } catch (const packhorse::Error& error) {
    std::cerr << error.message() << "\n";
    return 1;
  }
}
