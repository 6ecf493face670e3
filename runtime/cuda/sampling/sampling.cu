// Choosing tokens: a block for each row of logits, which stay where they are and are read several
// times out of the second-level cache. Where a step has few rows, several blocks look for the
// largest logit of a row, each in a segment of the vocabulary, and the last to finish goes on
// alone.
//
// Nothing is sorted. The tokens that top_k, top_p or a list of the most likely tokens keep are
// those above a key, and that key is found digit by digit with a histogram of the next 8 bits, as
// in a radix sort. Weights of tokens are integers (ops/sampling_math.h): threads may add them in
// any order, and the token that is drawn is the same as on the CPU for the same logits, but for the
// last bits of exp.
#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/rows/reduce.cuh"
#include "cuda/sampling/sampling.h"
#include "ops/sampling_math.h"

namespace packhorse::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

/// The tokens with a larger key, and those with this key up to a token: what a selection has kept.
struct Selected {
  uint32_t key = 0;
  int last = INT32_MAX;  // token
  __device__ bool contains(uint32_t of_key, int token) const {
    return of_key > key || (of_key == key && token <= last);
  }
};

struct Shared {
  unsigned long long sums[256];
  unsigned long long warp_sums[kWarps];
  float warp_floats[kWarps];
  unsigned long long chosen;  // what one thread has found for all
  unsigned long long left;
  uint32_t top_keys[kMostTopTokens];
  int top_tokens[kMostTopTokens];
  int found;
};

__device__ inline unsigned long long warp_sum_exact(unsigned long long value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}

/// Sum over the block, for every thread.
__device__ unsigned long long block_sum(unsigned long long value, Shared& shared) {
  value = warp_sum_exact(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum_exact(shared.warp_sums[threadIdx.x % 32]);
}

/// The largest of the block, for every thread.
__device__ unsigned long long block_max(unsigned long long value, Shared& shared) {
  const auto warp_max = [](unsigned long long x) {
    for (int mask = 16; mask > 0; mask /= 2) {
      const unsigned long long other = __shfl_xor_sync(kFullWarp, x, mask);
      x = other > x ? other : x;
    }
    return x;
  };
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_max(shared.warp_sums[threadIdx.x % 32]);
}

/// Sum in an order that the number of threads fixes, for every thread.
__device__ float block_sum(float value, Shared& shared) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.warp_floats[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(shared.warp_floats[threadIdx.x % 32]);
}

/// The first token at which the sum of weight(token) over all tokens up to it is larger than
/// `before`; the sum of all is. Each warp has a range of tokens.
template <class Weight>
__device__ int walk(int vocab_size, unsigned long long before, Weight weight, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = (vocab_size + kWarps * 32 - 1) / (kWarps * 32) * 32;
  const int begin = warp * part;
  const int end = min(begin + part, vocab_size);
  unsigned long long mine = 0;
  for (int token = begin + lane; token < end; token += 32) mine += weight(token);
  mine = warp_sum_exact(mine);
  __syncthreads();
  if (lane == 0) shared.warp_sums[warp] = mine;
  __syncthreads();
  unsigned long long left = before;
  int owner = 0;
  while (owner + 1 < kWarps && shared.warp_sums[owner] <= left) left -= shared.warp_sums[owner++];
  if (warp == owner) {
    for (int first = begin; first < begin + part; first += 32) {
      const unsigned long long own = first + lane < end ? weight(first + lane) : 0;
      unsigned long long sum = own;  // of this lane and those before
      for (int step = 1; step < 32; step *= 2) {
        const unsigned long long below = __shfl_up_sync(kFullWarp, sum, step);
        if (lane >= step) sum += below;
      }
      const unsigned hits = __ballot_sync(kFullWarp, sum > left);
      if (hits != 0) {
        if (lane == 0) shared.chosen = static_cast<unsigned long long>(first + __ffs(hits) - 1);
        break;
      }
      left -= __shfl_sync(kFullWarp, sum, 31);
    }
  }
  __syncthreads();
  return static_cast<int>(shared.chosen);
}

/// The fewest tokens, those with the largest keys first and of equal ones the lower, whose weights
/// sum to `target` or more; the weights of all do. Weights of equal keys are equal, or 0.
template <class Key, class Weight>
__device__ Selected select(int vocab_size, unsigned long long target, Key key, Weight weight,
                           Shared& shared) {
  Selected selected;
  unsigned long long needed = target;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < 256) shared.sums[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t above = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
    for (int token = static_cast<int>(threadIdx.x); token < vocab_size; token += kThreads) {
      const uint32_t its = key(token);
      if ((its & above) != selected.key) continue;
      const unsigned long long amount = weight(token);
      if (amount != 0) atomicAdd(&shared.sums[its >> shift & 0xff], amount);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      while (digit > 0 && shared.sums[digit] < needed) needed -= shared.sums[digit--];
      shared.chosen = static_cast<unsigned long long>(digit);
      shared.left = needed;
    }
    __syncthreads();
    selected.key |= static_cast<uint32_t>(shared.chosen) << shift;
    needed = shared.left;
  }
  const uint32_t last_key = selected.key;
  selected.last = walk(
      vocab_size, needed - 1,
      [=](int token) { return key(token) == last_key ? weight(token) : 0ull; }, shared);
  return selected;
}

class Row {
 public:
  /// `merges`: of all rows, where several blocks have a row; else null.
  __device__ Row(const SampleArgs& args, int index, SampleMerge* merges, Shared& shared)
      : args_(args),
        row_(args.rows[index]),
        index_(index),
        merge_(merges == nullptr ? nullptr : merges + index),
        vocab_size_(static_cast<int>(args.logits.shape[1])),
        logits_(static_cast<float*>(args.logits.data) + index * args.logits.row_stride),
        shared_(shared) {}

  __device__ void run() {
    // What changes logits or looks at all of them first is for one block.
    if (row_.of_beam || row_.forced >= 0 || row_.bias_end > row_.bias_begin ||
        args_.wants_logprobs || args_.num_top > 0) {
      if (blockIdx.y > 0) return;
      merge_ = nullptr;
    }
    if (row_.of_beam) return tell_beam();
    float normalizer = 0;
    if (args_.wants_logprobs || args_.num_top > 0) normalizer = log_sum();
    const float* logits = logits_;
    tell_top(normalizer, [=](int token) { return logit_key(logits[token]); });
    add_biases();
    const int token = row_.forced >= 0 ? row_.forced : choose();
    if (threadIdx.x != 0 || token == kNotMine) return;
    args_.tokens[index_] = token;
    if (!args_.wants_logprobs) return;
    float logit = token < 0 ? normalizer : logits_[token];
    for (int i = row_.bias_begin; i < row_.bias_end; ++i) {
      if (args_.bias_tokens[i] == token) logit = unbiased()[i];
    }
    args_.logprobs[index_] = logit - normalizer;
  }

 private:
  static constexpr int kNotMine = -2;  // another block chooses the token

  /// Calls visit(token, logit) for this thread's tokens of [begin, end), in ascending order. It
  /// asks for several logits at a time, since one block alone has to bring them all.
  template <class Visit>
  __device__ void for_logits(int begin, int end, Visit visit) const {
    constexpr int kAtOnce = 8;
    for (int first = begin + static_cast<int>(threadIdx.x); first < end;
         first += kAtOnce * kThreads) {
      float logits[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) logits[i] = logits_[min(first + i * kThreads, end - 1)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kThreads < end) visit(first + i * kThreads, logits[i]);
      }
    }
  }

  /// The largest of what the blocks of this row have found, for the last of them to ask; 0 for the
  /// others.
  __device__ unsigned long long merge(unsigned long long best) {
    if (threadIdx.x == 0) {
      atomicMax(&merge_->best, best);
      __threadfence();
      const bool last = atomicAdd(&merge_->blocks, 1u) + 1 == gridDim.y;
      shared_.chosen = 0;
      if (last) {
        __threadfence();
        shared_.chosen = atomicExch(&merge_->best, 0ull);  // as the next launch expects it
        merge_->blocks = 0;
      }
    }
    __syncthreads();
    return shared_.chosen;
  }

  __device__ float log_sum() {
    unsigned long long largest = 0;
    for_logits(0, vocab_size_, [&](int, float logit) {
      const unsigned long long key = logit_key(logit);
      largest = key > largest ? key : largest;
    });
    const float most = logit_of_key(static_cast<uint32_t>(block_max(largest, shared_)));
    if (most == -INFINITY) return 0;
    float sum = 0;
    for_logits(0, vocab_size_, [&](int, float logit) { sum += expf(logit - most); });
    return most + logf(block_sum(sum, shared_));
  }

  __device__ float* unbiased() const { return static_cast<float*>(args_.workspace); }

  __device__ void add_biases() {
    __syncthreads();
    for (int i = row_.bias_begin + static_cast<int>(threadIdx.x); i < row_.bias_end;
         i += kThreads) {
      float& logit = logits_[args_.bias_tokens[i]];
      unbiased()[i] = logit;
      logit += args_.biases[i];
    }
    __syncthreads();
  }

  __device__ void tell_beam() {
    const float normalizer = log_sum();
    for (int token = static_cast<int>(threadIdx.x); token < vocab_size_; token += kThreads) {
      logits_[token] -= normalizer;
    }
    add_biases();
    tell_top(0, [this](int token) { return key(token); });
    if (threadIdx.x != 0) return;
    args_.tokens[index_] = -1;
    if (args_.wants_logprobs) args_.logprobs[index_] = 0;
  }

  /// The most likely tokens by their keys.
  template <class Key>
  __device__ void tell_top(float normalizer, Key key) {
    if (args_.num_top == 0) return;
    const int count = min(args_.num_top, vocab_size_);
    const Selected top = select(
        vocab_size_, static_cast<unsigned long long>(count), key, [](int) { return 1ull; },
        shared_);
    if (threadIdx.x == 0) shared_.found = 0;
    __syncthreads();
    for (int token = static_cast<int>(threadIdx.x); token < vocab_size_; token += kThreads) {
      if (!top.contains(key(token), token)) continue;
      const int at = atomicAdd(&shared_.found, 1);
      shared_.top_keys[at] = key(token);
      shared_.top_tokens[at] = token;
    }
    __syncthreads();
    // A token's place is the number of tokens before it.
    for (int i = static_cast<int>(threadIdx.x); i < args_.num_top; i += kThreads) {
      int32_t* tokens = args_.top_tokens + index_ * args_.num_top;
      float* logprobs = args_.top_logprobs + index_ * args_.num_top;
      if (i >= count) {
        tokens[i] = -1;
        logprobs[i] = -INFINITY;
        continue;
      }
      int place = 0;
      for (int j = 0; j < count; ++j) {
        place += shared_.top_keys[j] > shared_.top_keys[i] ||
                 (shared_.top_keys[j] == shared_.top_keys[i] &&
                  shared_.top_tokens[j] < shared_.top_tokens[i]);
      }
      tokens[place] = shared_.top_tokens[i];
      logprobs[place] = logit_of_key(shared_.top_keys[i]) - normalizer;
    }
    __syncthreads();
  }

  __device__ uint32_t key(int token) const { return key(token, logits_[token]); }

  __device__ uint32_t key(int token, float logit) const {
    if (row_.counts >= 0) {
      const auto* counts = static_cast<const int32_t*>(args_.counts.data);
      logit = penalize(logit, row_, counts[row_.counts * args_.counts.row_stride + token]);
    }
    if (row_.mask >= 0) {
      const int64_t words = (vocab_size_ + 31) / 32;
      const uint32_t word = args_.masks[row_.mask * words + token / 32];
      if ((word >> token % 32 & 1) == 0) return kImpossibleKey;
    }
    return logit_key(logit);
  }

  __device__ int choose() {
    const auto key_of = [this](int token) { return key(token); };
    // The largest key, and the lowest of its tokens.
    unsigned long long best = 0;
    const int blocks = merge_ == nullptr ? 1 : static_cast<int>(gridDim.y);
    const int part = (vocab_size_ + blocks - 1) / blocks;
    const int begin = min(vocab_size_, static_cast<int>(blockIdx.y) * part);
    for_logits(begin, min(vocab_size_, begin + part), [&](int token, float logit) {
      const unsigned long long here =
          static_cast<unsigned long long>(key(token, logit)) << 32 | (0xffffffffu - token);
      best = here > best ? here : best;
    });
    best = block_max(best, shared_);
    if (merge_ != nullptr) {
      best = merge(best);
      if (best == 0) return kNotMine;
    }
    const auto best_key = static_cast<uint32_t>(best >> 32);
    const int best_token = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    if (best_key <= kImpossibleKey) return -1;
    const float largest = logit_of_key(best_key);
    if (row_.temperature == 0 || isinf(largest)) return best_token;
    Selected kept;
    if (row_.top_k > 0 && row_.top_k < vocab_size_) {
      kept = select(
          vocab_size_, static_cast<unsigned long long>(row_.top_k), key_of,
          [](int) { return 1ull; }, shared_);
    }
    const auto smallest =
        static_cast<unsigned long long>(static_cast<double>(row_.min_p) * kWeightUnit);
    const double temperature = row_.temperature;
    const auto weight = [&](int token) {
      const uint32_t its = key(token);
      if (!kept.contains(its, token)) return 0ull;
      const auto below =
          static_cast<float>((logit_of_key(its) - static_cast<double>(largest)) / temperature);
      return static_cast<unsigned long long>(static_cast<double>(expf(below)) * kWeightUnit);
    };
    if (row_.top_p < 1) {
      unsigned long long sum = 0;
      for (int token = static_cast<int>(threadIdx.x); token < vocab_size_; token += kThreads) {
        sum += weight(token);
      }
      const unsigned long long total = block_sum(sum, shared_);
      // The weights are those of what top_k has kept until the selection is made.
      const Selected nucleus =
          select(vocab_size_, nucleus_of(total, row_.top_p), key_of, weight, shared_);
      kept = nucleus;
    }
    const auto final_weight = [&](int token) {
      const unsigned long long its = weight(token);
      return its < smallest ? 0ull : its;
    };
    unsigned long long sum = 0;
    for (int token = static_cast<int>(threadIdx.x); token < vocab_size_; token += kThreads) {
      sum += final_weight(token);
    }
    const unsigned long long total = block_sum(sum, shared_);
    return walk(vocab_size_, scale_random(random_bits(row_), total), final_weight, shared_);
  }

  const SampleArgs& args_;
  const SamplingRow row_;
  const int index_;
  SampleMerge* merge_;  // null: one block has the row
  const int vocab_size_;
  float* const logits_;
  Shared& shared_;
};

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const __grid_constant__ SampleArgs args, SampleMerge* merges) {
  __shared__ Shared shared;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int index = static_cast<int>(blockIdx.x);
  if (args.row_count != nullptr && index >= *args.row_count) return;
  Row(args, index, gridDim.y > 1 ? merges : nullptr, shared).run();
}

__global__ void __launch_bounds__(256)
    clear_counts_kernel(const __grid_constant__ CountTokensArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  auto* counts =
      static_cast<int32_t*>(args.counts.data) + args.clear[blockIdx.y] * args.counts.row_stride;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (token < args.counts.shape[1]) counts[token] = 0;
}

__global__ void __launch_bounds__(256)
    count_tokens_kernel(const __grid_constant__ CountTokensArgs args) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= args.num_tokens || args.slots[i] < 0) return;
  int32_t* count = static_cast<int32_t*>(args.counts.data) +
                   args.slots[i] * args.counts.row_stride + args.ids[i];
  if (args.of_prompt) {
    atomicOr(count, CountTokensArgs::kSeen);
  } else {
    atomicAdd(count, 1);
  }
}

}  // namespace

void launch_sample(const SampleArgs& args, SampleMerge* merges, int sm_count, cudaStream_t stream) {
  const int64_t rows = args.logits.rows();
  // A multiprocessor has room for two blocks; each shall have enough logits for its threads.
  const int64_t most = args.logits.columns() / (2 * kThreads);
  const int64_t blocks =
      rows > kMostMerges ? 1
                         : std::clamp<int64_t>(2 * sm_count / rows, 1, std::max<int64_t>(1, most));
  launch_kernel(sample_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(blocks)),
                kThreads, 0, stream, args, merges);
}

void launch_count_tokens(const CountTokensArgs& args, cudaStream_t stream) {
  if (args.num_clear > 0) {
    const dim3 grid(static_cast<unsigned>((args.counts.columns() + 255) / 256),
                    static_cast<unsigned>(args.num_clear));
    launch_kernel(clear_counts_kernel, grid, 256, 0, stream, args);
  }
  if (args.num_tokens > 0) {
    launch_kernel(count_tokens_kernel, dim3(static_cast<unsigned>((args.num_tokens + 255) / 256)),
                  256, 0, stream, args);
  }
}

}  // namespace packhorse::cuda
