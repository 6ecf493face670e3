// Choosing tokens: a cluster of blocks for each row of logits, or one block where there are many
// rows. A block has a segment of the vocabulary.
//
// No row is sorted. The tokens that top_k or top_p keep are those above a key, and that key is
// found digit by digit with a histogram of the next 8 bits, as in a radix sort. A list of a few
// most likely tokens needs no more than a bound of its keys: what lies above it is looked through.
// Weights of tokens are integers (ops/sampling_math.h): threads may add them in any order, and the
// token that is drawn is the same as on the CPU for the same logits, but for the last bits of exp.
#include <cfloat>

#include "core/math.h"
#include "cuda/sampling/row_logits.cuh"
#include "ops/sampling_math.h"

namespace packhorse::cuda {
namespace {

/// The tokens with a larger key, and those with this key up to a token: what a selection has kept.
struct Selected {
  uint32_t key = 0;
  int last = INT32_MAX;  // token
  __device__ bool contains(uint32_t of_key, int token) const {
    return of_key > key || (of_key == key && token <= last);
  }
};

/// Tokens that a block may look through for its most likely ones. More than a few times as many as
/// are wanted are rare: equal logits, or masks that leave next to nothing.
constexpr int kMostCandidates = 512;

struct Shared {
  RowBlocksShared blocks;
  Histogram histogram;
  float segment_warp_sums[kMostRowBlocks][kSampleWarps];
  float segment_sums[kMostRowBlocks];
  uint32_t warp_keys[kSampleWarps];
  uint32_t candidate_keys[kMostCandidates];
  int candidate_tokens[kMostCandidates];
  int num_candidates;
  uint32_t top_keys[kMostTopTokens];
  int top_tokens[kMostTopTokens];
  int found;
};

/// The choice of one row's token. T, kVectors: of RowLogits.
template <class T, bool kVectors>
class Row {
 public:
  __device__ Row(const SampleArgs& args, int index, RowBlocks& blocks, Shared& shared)
      : args_(args),
        row_(args.rows[index]),
        index_(index),
        logits_(args, index, blocks),
        shared_(shared),
        blocks_(blocks),
        plain_(row_.counts < 0 && row_.mask < 0 && row_.bias_end >= row_.boost_end && !row_.flat) {}

  __device__ void run() {
    if (changes_logits()) logits_.store();
    if (row_.filtered || row_.timestamps >= 0) filter();
    if (row_.of_beam) return write_beam();
    float normalizer = 0;
    if (args_.wants_logprobs || args_.num_top > 0) normalizer = normalizer_of_all();
    write_top(normalizer, [](int, float logit) { return logit_key(logit); });
    add_biases();
    const int token = row_.forced >= 0 ? row_.forced : choose();
    // The block that has the token knows its logit as it was.
    const bool is_mine = token < 0 ? blocks_.rank() == 0 : logits_.has(token);
    if (threadIdx.x != 0 || !is_mine) return;
    args_.tokens[index_] = token;
    if (!args_.wants_logprobs) return;
    float logit = token < 0 ? normalizer : logits_.at(token);
    for (int i = row_.bias_begin; i < row_.bias_end && !filtered_; ++i) {
      if (args_.bias_tokens[i] == token) logit = unbiased()[i];
    }
    args_.logprobs[index_] = logit - normalizer;
  }

 private:
  /// Returns whether biases or a filter write to the logits.
  __device__ bool changes_logits() const {
    return row_.filtered || row_.timestamps >= 0 || row_.bias_begin < row_.bias_end;
  }

  /// The largest logit of the tokens [first, end) of all blocks; -infinity where there are none.
  /// Leaves the keys of the largest logits of this block's warps in shared memory.
  __device__ float largest(int first, int end) {
    float most = -INFINITY;
    logits_.for_each(max(logits_.begin(), first), min(logits_.end(), end),
                     [&](int, float logit) { most = fmaxf(most, logit); });
    const unsigned long long of_warp = warp_max_exact(logit_key(most));
    keep_warp_key(of_warp);
    return logit_of_key(static_cast<uint32_t>(blocks_.max(of_warp)));
  }

  __device__ void keep_warp_key(unsigned long long key) {
    __syncthreads();  // others may still read the last ones
    if (threadIdx.x % 32 == 0) shared_.warp_keys[threadIdx.x / 32] = static_cast<uint32_t>(key);
    if (threadIdx.x == 0) shared_.num_candidates = 0;
    __syncthreads();
  }

  /// log of the sum of exp over the logits from token `first` on, of which `most` is the largest;
  /// or -infinity. Its order is fixed by the segments. Calls also(token, logit) for all of them.
  template <class Also>
  __device__ float log_sum(int first, float most, Also also) {
    if (most == -INFINITY) return most;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int i = 0; i < logits_.segments(); ++i) {
      const int segment = logits_.first_segment() + i;
      float sum = 0;
      logits_.for_each(max(logits_.segment_begin(segment), first),
                       logits_.segment_begin(segment + 1), [&](int token, float logit) {
                         sum += expf(logit - most);
                         also(token, logit);
                       });
      sum = warp_sum(sum);
      if (lane == 0) shared_.segment_warp_sums[i][warp] = sum;
    }
    __syncthreads();
    if (warp < logits_.segments()) {
      const float sum = warp_sum(shared_.segment_warp_sums[warp][lane]);
      if (lane == 0) shared_.segment_sums[warp] = sum;
    }
    blocks_.wait();
    float sum = 0;
    for (int segment = 0; segment < kSegments; ++segment) {
      sum += *blocks_.of(&shared_.segment_sums[segment % logits_.segments()],
                         segment / logits_.segments());
    }
    return most + logf(sum);
  }

  /// log of the sum of exp over all logits, or 0 where all are -infinity. Where the most likely
  /// tokens are wanted, and logits alone decide which these are, candidates are collected
  /// meanwhile: the logits are read twice for both.
  __device__ float normalizer_of_all() {
    const float most = largest(0, logits_.vocab_size());
    const bool by_logits =
        !row_.of_beam || filtered_ || (plain_ && row_.bias_begin >= row_.bias_end);
    const int count = num_top();
    collected_ = by_logits && count > 0 && count <= kSampleWarps;
    float bound = INFINITY;
    if (collected_) {
      bound = logit_of_key(bound_of(count));
      // Logits a little apart may be equal once the normalizer, which is below |most| + 16, is
      // subtracted. Then the lower token comes first.
      bound -= (fabsf(bound) + fabsf(most) + 16) * 0x1p-22f;
    }
    const float sum = log_sum(0, most, [&](int token, float logit) {
      if (logit >= bound) add_candidate(token, __float_as_uint(logit));
    });
    return sum == -INFINITY ? 0 : sum;
  }

  __device__ float* unbiased() const { return static_cast<float*>(args_.workspace); }

  /// Leaves in the logits what the settings make of them, -infinity for tokens that may not come.
  __device__ void filter() {
    add_biases();
    logits_.for_each([&](int token, float logit) {
      const uint32_t its = key(token, logit);
      logits_[token] = its <= kImpossibleKey ? -INFINITY : logit_of_key(its);
    });
    filtered_ = true;
    __syncthreads();
    if (row_.timestamps < 0) return;
    const float times =
        log_sum(row_.timestamps, largest(row_.timestamps, logits_.vocab_size()), [](int, float) {});
    if (!(times > largest(0, row_.timestamps))) return;
    logits_.for_each(logits_.begin(), min(logits_.end(), row_.timestamps),
                     [&](int token, float) { logits_[token] = -INFINITY; });
    __syncthreads();
  }

  /// Adds the biases of this block's tokens, unless the logits have them.
  __device__ void add_biases() {
    if (filtered_) return;
    __syncthreads();
    for (int i = row_.bias_begin + static_cast<int>(threadIdx.x); i < row_.bias_end;
         i += kSampleThreads) {
      const int token = args_.bias_tokens[i];
      if (!logits_.has(token)) continue;
      float& logit = logits_[token];
      unbiased()[i] = logit;
      logit += args_.biases[i];
    }
    __syncthreads();
  }

  __device__ void write_beam() {
    float normalizer = normalizer_of_all();
    if (!filtered_ && row_.bias_begin < row_.bias_end) {  // biases are added to log-probabilities
      logits_.for_each([&](int token, float logit) { logits_[token] = logit - normalizer; });
      add_biases();
      normalizer = 0;
    }
    write_top(0, [=, this](int token, float logit) { return key(token, logit - normalizer); });
    if (threadIdx.x != 0 || blocks_.rank() != 0) return;
    args_.tokens[index_] = -1;
    if (args_.wants_logprobs) args_.logprobs[index_] = 0;
  }

  /// The fewest tokens, those with the largest keys first and of equal ones the lower, whose
  /// weights sum to `target` or more; the weights of all do. key(token, logit); weight(token, key)
  /// is the same for equal keys, or 0.
  template <class Key, class Weight>
  __device__ Selected select(unsigned long long target, Key key, Weight weight) {
    Selected selected;
    unsigned long long needed = target;
    for (int shift = 24; shift >= 0; shift -= 8) {
      __syncthreads();
      shared_.histogram.clear();
      __syncthreads();
      const uint32_t above = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
      logits_.for_each([&](int token, float logit) {
        const uint32_t its = key(token, logit);
        if ((its & above) != selected.key) return;
        shared_.histogram.add(its >> shift & 0xff, weight(token, its));
      });
      const int digit = blocks_.digit_of(shared_.histogram, needed);
      selected.key |= static_cast<uint32_t>(digit) << shift;
    }
    const uint32_t last_key = selected.key;
    selected.last = walk(needed - 1, [&](int token, float logit) {
      return key(token, logit) == last_key ? weight(token, last_key) : 0ull;
    });
    return selected;
  }

  /// RowBlocks::walk with weight(token, logit).
  template <class Weight>
  __device__ int walk(unsigned long long before, Weight weight) {
    return blocks_.walk(
        logits_.begin(), logits_.end(), before,
        [&](int first, int end, int stride, auto visit) {
          logits_.visit_strided(first, end, stride, [&](int token, float logit) {
            visit(token, weight(token, logit));
          });
        },
        [&](int token) { return weight(token, logits_.at(token)); });
  }

  /// The number of most likely tokens that are wanted.
  __device__ int num_top() const { return min(args_.num_top, logits_.vocab_size()); }

  /// The key at place `count` among the largest of this block's warps: tokens with smaller keys are
  /// not among its `count` most likely ones.
  __device__ uint32_t bound_of(int count) const {
    const int own_lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t of_lane = shared_.warp_keys[own_lane];
    int larger = 0;
    for (int lane = 0; lane < kSampleWarps; ++lane) {
      const uint32_t its = __shfl_sync(kFullWarp, of_lane, lane);
      larger += its > of_lane || (its == of_lane && lane < own_lane);
    }
    const unsigned at_place = __ballot_sync(kFullWarp, larger == count - 1);
    return __shfl_sync(kFullWarp, of_lane, __ffs(at_place) - 1);
  }

  __device__ void add_candidate(int token, uint32_t key) {
    const int at = atomicAdd(&shared_.num_candidates, 1);
    if (at >= kMostCandidates) return;
    shared_.candidate_keys[at] = key;
    shared_.candidate_tokens[at] = token;
  }

  /// Collects this block's candidates for its `count` most likely tokens. The logits are read
  /// twice: for the largest key of each warp, which bound the keys from below; and for what lies
  /// above.
  template <class Key>
  __device__ void collect_candidates(int count, Key key) {
    uint32_t most = 0;
    logits_.for_each([&](int token, float logit) { most = max(most, key(token, logit)); });
    keep_warp_key(warp_max_exact(most));
    const uint32_t bound = bound_of(count);
    logits_.for_each([&](int token, float logit) {
      const uint32_t its = key(token, logit);
      if (its >= bound) add_candidate(token, its);
    });
  }

  /// Keeps this block's `count` most likely tokens in shared memory. False in all blocks, and
  /// nothing is kept, where a block has too many candidates.
  template <class Key>
  __device__ bool keep_candidates(int count, Key key) {
    if (count > kSampleWarps) return false;
    const int thread = static_cast<int>(threadIdx.x);
    if (!collected_) collect_candidates(count, key);
    __syncthreads();
    const int found = shared_.num_candidates;
    if (blocks_.max(found > kMostCandidates ? 1 : 0) != 0) return false;
    if (collected_) {
      for (int i = thread; i < found; i += kSampleThreads) {
        uint32_t& its = shared_.candidate_keys[i];
        its = key(shared_.candidate_tokens[i], __uint_as_float(its));
      }
      __syncthreads();
    }
    for (int i = thread; i < found; i += kSampleThreads) {
      const uint32_t its = shared_.candidate_keys[i];
      const int token = shared_.candidate_tokens[i];
      int place = 0;
      for (int j = 0; j < found; ++j) {
        place += shared_.candidate_keys[j] > its ||
                 (shared_.candidate_keys[j] == its && shared_.candidate_tokens[j] < token);
      }
      if (place >= count) continue;
      shared_.top_keys[place] = its;
      shared_.top_tokens[place] = token;
    }
    if (thread == 0) shared_.found = min(found, count);
    return true;
  }

  /// Keeps those of the row's `count` most likely tokens that this block has, whatever the keys
  /// are.
  template <class Key>
  __device__ void keep_selected(int count, Key key) {
    const Selected top =
        select(static_cast<unsigned long long>(count), key, [](int, uint32_t) { return 1ull; });
    if (threadIdx.x == 0) shared_.found = 0;
    __syncthreads();
    logits_.for_each([&](int token, float logit) {
      const uint32_t its = key(token, logit);
      if (!top.contains(its, token)) return;
      const int at = atomicAdd(&shared_.found, 1);
      shared_.top_keys[at] = its;
      shared_.top_tokens[at] = token;
    });
  }

  /// Writes the most likely tokens by key(token, logit).
  template <class Key>
  __device__ void write_top(float normalizer, Key key) {
    if (args_.num_top == 0) return;
    const int count = num_top();
    if (!keep_candidates(count, key)) keep_selected(count, key);
    blocks_.wait();
    int32_t* tokens = args_.top_tokens + index_ * args_.num_top;
    float* logprobs = args_.top_logprobs + index_ * args_.num_top;
    // A token's place is the number of tokens before it.
    for (int i = static_cast<int>(threadIdx.x); i < shared_.found; i += kSampleThreads) {
      int place = 0;
      for (int rank = 0; rank < blocks_.count(); ++rank) {
        const int found = *blocks_.of(&shared_.found, rank);
        const uint32_t* keys = blocks_.of(shared_.top_keys, rank);
        const int* others = blocks_.of(shared_.top_tokens, rank);
        for (int j = 0; j < found; ++j) {
          place += keys[j] > shared_.top_keys[i] ||
                   (keys[j] == shared_.top_keys[i] && others[j] < shared_.top_tokens[i]);
        }
      }
      if (place >= count) continue;
      tokens[place] = shared_.top_tokens[i];
      logprobs[place] = logit_of_key(shared_.top_keys[i]) - normalizer;
    }
    if (blocks_.rank() != 0) return;
    for (int i = count + static_cast<int>(threadIdx.x); i < args_.num_top; i += kSampleThreads) {
      tokens[i] = -1;
      logprobs[i] = -INFINITY;
    }
  }

  __device__ uint32_t key(int token, float logit) const {
    if (filtered_ || plain_) return logit_key(logit);
    if (row_.counts >= 0) {
      const auto* counts = static_cast<const int32_t*>(args_.counts.data);
      logit = penalize(logit, row_, counts[row_.counts * args_.counts.row_stride + token]);
    }
    logit = raise(logit, token, row_, args_);
    if (row_.mask >= 0) {
      const int64_t words = ceil_div(logits_.vocab_size(), 32);
      const uint32_t word = args_.masks[row_.mask * words + token / 32];
      if ((word >> token % 32 & 1) == 0) return kImpossibleKey;
    }
    return logit_key(logit);
  }

  /// The largest key of this thread's tokens above the lowest of those that have it, counted from
  /// the last number that there is; 0 where none is possible.
  __device__ unsigned long long most_likely() const {
    uint32_t best = kImpossibleKey;
    int its_token = 0;
    if (filtered_ || plain_) {  // the keys are in the order of the logits
      float most = -INFINITY;
      logits_.for_each([&](int token, float logit) {
        if (!(logit > most)) return;
        most = logit;
        its_token = token;
      });
      best = logit_key(most);
    } else {
      logits_.for_each([&](int token, float logit) {
        const uint32_t its = key(token, logit);
        if (its <= best) return;
        best = its;
        its_token = token;
      });
    }
    if (best == kImpossibleKey) return 0;
    return static_cast<unsigned long long>(best) << 32 |
           (0xffffffffu - static_cast<uint32_t>(its_token));
  }

  __device__ int choose() {
    const auto key_of = [this](int token, float logit) { return key(token, logit); };
    const unsigned long long best = blocks_.max(most_likely());
    const auto best_key = static_cast<uint32_t>(best >> 32);
    const int best_token = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    if (best_key <= kImpossibleKey) return -1;
    const float largest = logit_of_key(best_key);
    if (row_.temperature == 0 || isinf(largest)) return best_token;
    Selected kept;
    if (row_.top_k > 0 && row_.top_k < logits_.vocab_size()) {
      kept = select(static_cast<unsigned long long>(row_.top_k), key_of,
                    [](int, uint32_t) { return 1ull; });
    }
    const float inverse = inverse_temperature(row_.temperature);
    const auto weight = [&](int token, uint32_t its) -> unsigned long long {
      if (!kept.contains(its, token)) return 0;
      return weight_of(expf((logit_of_key(its) - largest) * inverse));
    };
    if (row_.top_p < 1) {
      unsigned long long sum = 0;
      logits_.for_each([&](int token, float logit) { sum += weight(token, key(token, logit)); });
      // The weights are those of what top_k has kept until the selection is made.
      const Selected nucleus = select(nucleus_of(blocks_.sum(sum), row_.top_p), key_of, weight);
      kept = nucleus;
    }
    const auto smallest = static_cast<unsigned long long>(static_cast<double>(row_.min_p) *
                                                          static_cast<double>(kWeightUnit));
    const auto final_weight = [&](int token, float logit) {
      const unsigned long long its = weight(token, key(token, logit));
      return its < smallest ? 0ull : its;
    };
    unsigned long long sum = 0;
    logits_.for_each([&](int token, float logit) { sum += final_weight(token, logit); });
    return walk(scale_random(random_bits(row_), blocks_.sum(sum)), final_weight);
  }

  const SampleArgs& args_;
  const SamplingRow row_;
  const int index_;
  RowLogits<T, kVectors> logits_;
  Shared& shared_;
  RowBlocks& blocks_;
  const bool plain_;        // no setting makes a token's key another than its logit's
  bool filtered_ = false;   // the logits are what the settings have made of them
  bool collected_ = false;  // candidates have been collected, with their logits for keys
};

template <class T, bool kVectors>
__global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ Shared shared;
  RowBlocks blocks(shared.blocks);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int index = static_cast<int>(blockIdx.x) / blocks.count();
  if (args.row_count != nullptr && index >= *args.row_count) return;
  Row<T, kVectors>(args, index, blocks, shared).run();
  blocks.end();
}

}  // namespace

void launch_sample(const SampleArgs& args, const KernelStream& stream) {
  const int64_t rows = args.logits.rows();
  unsigned blocks = 1;
  if (stream.caps.clusters) {
    while (blocks < kMostRowBlocks && rows * blocks * 2 <= stream.caps.sm_count) blocks *= 2;
  }
  const bool vectors = takes_vectors(args.logits) && (!args.source || takes_vectors(args.source));
  const auto launch = [&]<class T>() {
    launch_clusters(blocks, vectors ? sample_kernel<T, true> : sample_kernel<T, false>,
                    dim3(static_cast<unsigned>(rows) * blocks), kSampleThreads, 0, stream, args);
  };
  if (!args.source) return launch.template operator()<float>();
  dispatch_dtype(args.source.dtype, launch);
}

}  // namespace packhorse::cuda
