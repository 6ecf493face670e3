// Each allocation of a load, of a run and of a request fails once: an error comes out of it,
// nothing is left behind, and the next attempt gives the same bits as ever. In a build with
// sanitizers, what is left behind is found by LeakSanitizer instead of by counting.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "packhorse/generation.h"
#include "packhorse/session.h"
#include "test.h"
#include "tiny_model.h"

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> until_failure = kNever;  // allocations that still succeed
std::atomic<bool> has_failed = false;         // since the last attempt began
std::atomic<int64_t> alive = 0;               // allocations that were not freed

bool fails() {
  if (until_failure == kNever || until_failure-- != 0) return false;
  has_failed = true;
  return true;
}

void* allocate(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  if (fails() || posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) {
    throw std::bad_alloc();
  }
  ++alive;
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  --alive;
  std::free(memory);
}

}  // namespace

// Not inlined, or GCC warns of memory that malloc gave and delete takes. The forms for arrays, and
// those that do not throw, call these.
[[gnu::noinline]] void* operator new(size_t bytes) { return allocate(bytes, sizeof(void*) * 2); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  release(memory);
}

extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? nullptr : __real_aligned_alloc(alignment, bytes);
}
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset);
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (!fails()) return __real_mmap(at, bytes, protection, flags, file, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
}

using namespace packhorse;

namespace {

const std::vector<int32_t> kIds = {1, 2, 3, 4, 5, 6, 7};
const std::vector<int32_t> kOffsets = {0, 3, 3, 7};

// Calls `body`, in which an allocation fails after `succeeding` others. Only what stands for a lack
// of memory may be thrown: std::bad_alloc, of which OutOfMemory is one, or a RuntimeError with the
// system's words.
void attempt(int64_t succeeding, const std::function<void()>& body) {
  has_failed = false;
  until_failure = succeeding;
  try {
    body();
  } catch (const std::bad_alloc&) {
  } catch (const RuntimeError& failure) {
    until_failure = kNever;
    CHECK(failure.message().find("Cannot allocate memory") != std::string::npos);
  }
  until_failure = kNever;
}

// Fails each allocation of `body` once, and returns how many it was. `check` looks at what is there
// afterwards.
int64_t fail_each(const std::function<void()>& body, const std::function<void()>& check) {
  body();  // what is made once for the process is made here
  body();
  const int64_t before = alive;
  for (int64_t i = 0;; ++i) {
    attempt(i, body);
    // The engine's thread takes finished requests apart when their callers have their results.
    for (int waits = 0; alive > before && waits < 100; ++waits) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (const int64_t left = alive - before; left > 0) {
      packhorse::test::fail(__FILE__, __LINE__,
                            "allocation " + std::to_string(i) + " failed, and " +
                                std::to_string(left) + " others are left");
    }
    check();
    if (!has_failed) return i;
  }
}

// A converted folder of the tiny model.
class Folder {
 public:
  explicit Folder(const std::string& spec)
      : path_(std::filesystem::temp_directory_path() /
              ("packhorse-allocation-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(path_);
    std::ofstream(path_ / "packhorse.json") << spec;
    test::TinyWeights().write((path_ / "model.safetensors").string());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

SessionOptions small_options() {
  SessionOptions options;
  options.max_tokens = 100;
  options.max_sequences = 4;
  options.threads = 2;
  return options;
}

std::vector<float> hidden(Session& session) {
  std::vector<float> result(kIds.size() * 24);
  session.run({.ids = kIds, .cu_seqlens = kOffsets, .type_ids = {}, .position_ids = {}},
              {.hidden = result.data()});
  return result;
}

GenerationOptions generation_options() {
  GenerationOptions options;
  options.max_tokens = 100;
  options.max_sequences = 4;
  options.kv_tokens = 24 * 64;
  options.threads = 2;
  return options;
}

std::string decoder_spec() {
  return test::tiny_spec(R"({
    "type_vocab_size": null, "max_seqlen": 2000,
    "positions": {"kind": "none", "count": null, "offset": null},
    "attention": {"mask": "causal", "rope": {"theta": 10000}},
    "heads": {"pooler": null, "lm": {"tied": true}}, "embedding": {"pooling": "last"}})");
}

}  // namespace

TEST(allocation_failures_of_loads) {
  const Folder folder(test::tiny_spec());
  const auto load = [&] { return Session::load(folder.path(), small_options()); };
  const std::vector<float> expected = hidden(*load());
  const int64_t failed = fail_each([&] { load(); }, [] {});
  CHECK(failed > 100);
  CHECK(hidden(*load()) == expected);
}

TEST(allocation_failures_of_runs) {
  const Folder folder(test::tiny_spec());
  const auto session = Session::load(folder.path(), small_options());
  const std::vector<float> expected = hidden(*session);
  fail_each([&] { hidden(*session); }, [&] { CHECK(hidden(*session) == expected); });
}

TEST(allocation_failures_of_plans) {
  const std::string spec = test::spec_of_all_heads();
  const SessionOptions options = small_options();
  const size_t expected = plan_memory(spec, options).total_bytes();
  CHECK(fail_each([&] { plan_memory(spec, options); },
                  [&] { CHECK(plan_memory(spec, options).total_bytes() == expected); }) > 100);
}

TEST(allocation_failures_of_loads_that_generate) {
  const Folder folder(decoder_spec());
  const auto load = [&] { return GenerationSession::load(folder.path(), generation_options()); };
  CHECK(fail_each([&] { load(); }, [] {}) > 100);
}

// An allocation fails in the caller's thread, which then has the exception, or in the engine's: the
// request ends with an error.
TEST(allocation_failures_of_requests) {
  const Folder folder(decoder_spec());
  const auto session = GenerationSession::load(folder.path(), generation_options());
  Sampling greedy;
  greedy.max_new_tokens = 20;
  greedy.ignore_eos = true;
  greedy.temperature = 0;
  Sampling beams = greedy;
  beams.num_beams = 3;
  for (const Sampling& sampling : {greedy, beams}) {
    const auto generate = [&] { return session->generate({{kIds}}, sampling)[0][0]; };
    const GeneratedSequence expected = generate();
    CHECK(expected.ids.size() == 20);
    std::string seen;
    const auto body = [&] {
      const GeneratedSequence found = generate();
      if (found.finish_reason != FinishReason::kError) {
        CHECK(found.ids == expected.ids);
        return;
      }
      until_failure = kNever;
      CHECK(found.error.find("out of memory") != found.error.npos ||
            found.error.find("bad_alloc") != found.error.npos);
      throw std::bad_alloc();
    };
    CHECK(fail_each(body, [&] { CHECK(generate().ids == expected.ids); }) > 5);
    while (session->stats().running > 0) {
    }
    CHECK(session->stats().pages_used == 0);
  }
}
