// Writes down speech: makes frames of samples, cuts them into windows, and prints the tokens that a
// model of speech writes of each, all windows at once. A tokenizer makes text of them.
//
// usage: transcribe FOLDER SAMPLES END PROMPT...
//   FOLDER   a folder of a model of speech, written by `packhorse convert`
//   SAMPLES  a file of float32 samples, mono, 16,000 a second
//   END      the token that ends a text: 50256 in models that know English alone, else 50257
//   PROMPT   tokens that say what is wanted: 50257 50362 (tiny.en: a transcription without times)
#include <packhorse/audio.h>
#include <packhorse/generation.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kFramesOfToken = 2;  // frames that are one token of the source

std::vector<float> read_samples(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("there is no file " + path);
  std::vector<float> samples(static_cast<size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(samples.data()),
            static_cast<std::streamsize>(samples.size() * sizeof(float)));
  return samples;
}

// Logarithms of mel filters, [frames, num_mels]. The samples go on in silence to the end of the
// last window of so many frames.
std::vector<float> make_frames(std::vector<float> samples, int64_t num_mels, int64_t window) {
  const auto step = static_cast<size_t>(window * packhorse::audio::kHop);
  samples.resize((samples.size() + step - 1) / step * step);
  const int64_t frames = packhorse::audio::frames_of(static_cast<int64_t>(samples.size()));
  std::vector<float> found(static_cast<size_t>(frames * num_mels));
  packhorse::audio::LogMelArgs args;
  args.samples = samples;
  args.num_mels = num_mels;
  args.end = packhorse::audio::End::kSilence;
  args.out = found.data();
  packhorse::audio::log_mel(args, 0);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: transcribe FOLDER SAMPLES END PROMPT...\n";
    return 2;
  }
  try {
    packhorse::GenerationOptions options;
    options.kv_tokens = 8192;
    options.max_tokens = 1536;  // a window of 30 seconds has 1,500
    options.max_sequences = 8;
    packhorse::Sampling sampling;
    sampling.stop_ids = {std::stoi(argv[3])};
    std::vector<int32_t> prompt;
    for (int i = 4; i < argc; ++i) prompt.push_back(std::stoi(argv[i]));

    const auto session = packhorse::GenerationSession::load(argv[1], options);
    const int64_t columns = session->frame_features();
    if (columns == 0) throw std::runtime_error("this model reads no audio");
    const int64_t window = kFramesOfToken * session->max_source();
    const std::vector<float> frames = make_frames(read_samples(argv[2]), columns, window);

    std::vector<std::shared_ptr<packhorse::GenerationRequest>> requests;
    const auto size = static_cast<std::ptrdiff_t>(window * columns);
    for (auto first = frames.begin(); first != frames.end(); first += size) {
      auto features = std::make_shared<packhorse::SourceFeatures>();
      features->values.assign(first, first + size);
      features->columns = columns;
      requests.push_back(
          session->submit_features(prompt, sampling, packhorse::kNoTimeout, features));
    }
    for (const auto& request : requests) {
      request->wait();
      for (const int32_t id : request->result().ids) std::cout << id << ' ';
      std::cout << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
