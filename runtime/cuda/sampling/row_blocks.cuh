// Sums and searches over the blocks that share a row of logits: those of a cluster, or one block.
// What a block has found it writes to the shared memory of all, where that is short; else others
// read it there.
//
// Results are the same for all threads of all blocks and, as integers are added, the same however
// many blocks there are.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"

namespace packhorse::cuda {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / 32;
/// The most blocks that share a row: what a portable cluster holds.
inline constexpr int kMostRowBlocks = 8;

__device__ inline unsigned long long warp_sum_exact(unsigned long long value) {
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}

__device__ inline unsigned long long warp_max_exact(unsigned long long value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const unsigned long long other = __shfl_xor_sync(kFullWarp, value, mask);
    value = other > value ? other : value;
  }
  return value;
}

/// The sum of this lane's value and of those of the lanes before it.
__device__ inline unsigned long long warp_prefix(unsigned long long value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long before = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

/// Amounts by digit. Threads of a warp often add to the same digit at a time, so each digit has a
/// place for every eighth lane; and an amount is added in three parts, since shared memory adds
/// 32 bits at once.
class Histogram {
 public:
  static constexpr int kDigits = 256;

  __device__ void clear() {
    auto* const words = &parts_[0][0][0];
    for (int i = static_cast<int>(threadIdx.x); i < kParts * kDigits * kPlaces;
         i += kSampleThreads) {
      words[i] = 0;
    }
  }

  /// `amount`: less than 2^45. A place holds 2^17 of them, and a row has 2^19 tokens at most.
  __device__ void add(uint32_t digit, unsigned long long amount) {
    const auto place = threadIdx.x % kPlaces;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto bits = static_cast<uint32_t>(amount >> (part * kPartBits)) & kPartMask;
      if (bits != 0) atomicAdd(&parts_[part][digit][place], bits);
    }
  }

  __device__ unsigned long long sum(int digit) const {
    unsigned long long sum = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      unsigned long long of_part = 0;
#pragma unroll
      for (int place = 0; place < kPlaces; ++place) of_part += parts_[part][digit][place];
      sum += of_part << (part * kPartBits);
    }
    return sum;
  }

 private:
  static constexpr int kParts = 3;
  static constexpr int kPartBits = 15;
  static constexpr uint32_t kPartMask = (1u << kPartBits) - 1;
  static constexpr int kPlaces = 8;
  uint32_t parts_[kParts][kDigits][kPlaces];
};

/// Shared memory of a block, for RowBlocks. What blocks exchange is there twice, so that a block
/// may go on while others still read what was found last.
struct RowBlocksShared {
  unsigned long long of_warp[2][kSampleWarps];
  unsigned long long of_block[2][kMostRowBlocks];
  unsigned long long of_digit[2][Histogram::kDigits];
  unsigned long long sums[Histogram::kDigits];  // of_digit over all blocks
  unsigned long long left;
  int digit;
  int token;
};

class RowBlocks {
 public:
  __device__ explicit RowBlocks(RowBlocksShared& shared) : shared_(shared) {
#if __CUDA_ARCH__ >= 900
    rank_ = static_cast<int>(__clusterRelativeBlockRank());
    count_ = static_cast<int>(__clusterSizeInBlocks());
    if (count_ > 1) meet();  // The shared memory of a block exists once it has started.
#endif
  }

  __device__ int rank() const { return rank_; }
  __device__ int count() const { return count_; }

  /// Waits for all threads of all blocks, whose shared memory can be read then.
  __device__ void wait() {
    others_read_ = true;
    meet();
  }

  /// Returns a pointer, to be read, to what block `rank` has in shared memory where this block has
  /// `mine`.
  template <class T>
  __device__ const T* of(T* mine, int rank) const {
    return place_of(mine, rank);
  }

  /// Ends the use of shared memory; called by every thread, since a block must not end while others
  /// read its memory.
  __device__ void end() const {
    if (others_read_) meet();
  }

  __device__ unsigned long long sum(unsigned long long value) {
    return reduce(value, warp_sum_exact);
  }
  __device__ unsigned long long max(unsigned long long value) {
    return reduce(value, warp_max_exact);
  }

  /// The largest digit at and above which amounts sum to `needed` or more, or 0 where there is
  /// none; `needed` becomes what is left of it for that digit. Every thread has called
  /// histogram.add for its part, after a clear and a wait for the threads of its block.
  __device__ int digit_of(const Histogram& histogram, unsigned long long& needed) {
    constexpr int kDigits = Histogram::kDigits;
    const int thread = static_cast<int>(threadIdx.x);
    flip();
    auto* const mine = shared_.of_digit[side_];
    __syncthreads();
    if (thread < kDigits) mine[thread] = histogram.sum(thread);
    wait();
    if (thread < kDigits) {
      unsigned long long sum = 0;
      for (int rank = 0; rank < count_; ++rank) sum += of(mine, rank)[thread];
      shared_.sums[thread] = sum;
    }
    __syncthreads();
    if (thread < 32) {
      // Lane 0 has the eight largest digits.
      constexpr int kEach = kDigits / 32;
      const int largest = kDigits - 1 - thread * kEach;
      unsigned long long own = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) own += shared_.sums[largest - i];
      const unsigned long long through = warp_prefix(own);
      const unsigned enough = __ballot_sync(kFullWarp, through >= needed);
      if (thread == (enough != 0 ? __ffs(enough) - 1 : 31)) {
        unsigned long long left = needed - (through - own);
        int digit = largest;
        while (digit > largest - kEach + 1 && shared_.sums[digit] < left) {
          left -= shared_.sums[digit--];
        }
        shared_.digit = digit;
        shared_.left = left;
      }
    }
    __syncthreads();
    needed = shared_.left;
    return shared_.digit;
  }

  /// The first token at which the sum of weight(token) over all tokens up to it is larger than
  /// `before`; the sum of all is. [begin, end): this block's tokens, which follow those of the
  /// block before. each(first, end, stride, visit) calls visit(token, weight) for the tokens first,
  /// first + stride, and so on; at(token) is the weight of one.
  template <class Each, class At>
  __device__ int walk(int begin, int end, unsigned long long before, Each each, At at) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int part = ceil_div(end - begin, kSampleThreads) * 32;
    const int first = min(begin + warp * part, end);
    const int last = min(first + part, end);
    unsigned long long mine = 0;
    each(first + lane, last, 32, [&](int, unsigned long long weight) { mine += weight; });
    mine = warp_sum_exact(mine);
    flip();
    if (lane == 0) shared_.of_warp[side_][warp] = mine;
    __syncthreads();
    const unsigned long long of_lane = shared_.of_warp[side_][lane];
    const unsigned long long through = warp_prefix(of_lane);
    publish(__shfl_sync(kFullWarp, through, 31));
    meet();
    unsigned long long left = before;
    int owner = 0;
    for (; owner + 1 < count_; ++owner) {
      const unsigned long long its = shared_.of_block[side_][owner];
      if (its > left) break;
      left -= its;
    }
    const unsigned beyond = __ballot_sync(kFullWarp, through > left);
    const int owning_warp = beyond != 0 ? __ffs(beyond) - 1 : kSampleWarps - 1;
    left -= __shfl_sync(kFullWarp, through - of_lane, owning_warp);
    if (rank_ == owner && warp == owning_warp) {
      for (int token = first; token < last; token += 32) {
        const unsigned long long sum = warp_prefix(token + lane < last ? at(token + lane) : 0);
        const unsigned hits = __ballot_sync(kFullWarp, sum > left);
        if (hits != 0) {
          if (lane == 0) shared_.token = token + __ffs(hits) - 1;
          break;
        }
        left -= __shfl_sync(kFullWarp, sum, 31);
      }
    }
    wait();
    return *of(&shared_.token, owner);
  }

 private:
  __device__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (count_ > 1) {
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
      return;
    }
#endif
    __syncthreads();
  }

  /// Goes to the other of what is there twice. Between two calls every thread of every block has
  /// waited for all others.
  __device__ void flip() { side_ ^= 1; }

  template <class Reduce>
  __device__ unsigned long long reduce(unsigned long long value, Reduce of_lanes) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    flip();
    value = of_lanes(value);
    if (lane == 0) shared_.of_warp[side_][threadIdx.x / 32] = value;
    __syncthreads();
    value = of_lanes(shared_.of_warp[side_][lane]);
    if (count_ == 1) return value;
    publish(value);
    meet();
    return of_lanes(lane < count_ ? shared_.of_block[side_][lane] : 0);
  }

  /// Writes this block's value to of_block of all.
  __device__ void publish(unsigned long long value) {
    const int to = static_cast<int>(threadIdx.x);
    if (to < count_) *place_of(&shared_.of_block[side_][rank_], to) = value;
  }

  template <class T>
  __device__ T* place_of(T* mine, int rank) const {
#if __CUDA_ARCH__ >= 900
    if (count_ > 1) return static_cast<T*>(__cluster_map_shared_rank(mine, rank));
#endif
    return mine;
  }

  RowBlocksShared& shared_;
  int rank_ = 0;
  int count_ = 1;
  int side_ = 0;
  bool others_read_ = false;
};

}  // namespace packhorse::cuda
