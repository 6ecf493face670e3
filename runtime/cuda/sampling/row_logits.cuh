// The logits of one row, as the blocks that share it read them: each has a segment of the
// vocabulary. Logits stay where they are and are read several times, out of the caches. Those of 16
// bits become float32 where they are read, and in memory only where settings change them there.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/math.h"
#include "cuda/common/vector.cuh"
#include "cuda/sampling/row_blocks.cuh"
#include "cuda/sampling/sampling.h"

namespace packhorse::cuda {

/// True if every row can be read in vectors, also those that end past the last token.
inline bool takes_vectors(const TensorView& logits) {
  return logits.row_stride % kVectorSize == 0 &&
         logits.row_stride >= round_up(logits.columns(), int64_t{kVectorSize}) &&
         reinterpret_cast<uintptr_t>(logits.data) % 16 == 0;
}

/// Eight logits as they lie in memory.
template <class From>
struct VectorBits {
  static constexpr int kWords = static_cast<int>(sizeof(From) * kVectorSize / sizeof(uint4));
  uint4 words[kWords];

  __device__ void load(const From* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __device__ void unpack(float (&to)[kVectorSize]) const {
    if constexpr (std::is_same_v<From, float>) {
      load_vector(to, reinterpret_cast<const float*>(words));
    } else {
      cuda::unpack<From>(to, words[0]);
    }
  }
};

/// Segments of a row, of which a block has one or more: so sums of floats have the same order
/// however many blocks there are.
inline constexpr int kSegments = kMostRowBlocks;

/// One row of logits, for a block. T: the dtype of SampleArgs::source, or float where there is
/// none. kVectors: rows can be read in vectors (takes_vectors).
template <class T, bool kVectors>
class RowLogits {
 public:
  __device__ RowLogits(const SampleArgs& args, int index, const RowBlocks& blocks)
      : vocab_size_(static_cast<int>(args.logits.shape[1])),
        numbers_(static_cast<float*>(args.logits.data) + index * args.logits.row_stride),
        source_(static_cast<const T*>(args.source.data) + index * args.source.row_stride),
        segments_(kSegments / blocks.count()),
        first_segment_(blocks.rank() * segments_),
        begin_(segment_begin(first_segment_)),
        end_(segment_begin(first_segment_ + segments_)) {}

  __device__ int vocab_size() const { return vocab_size_; }
  /// The first token of this block, and the one past its last.
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  __device__ bool has(int token) const { return token >= begin_ && token < end_; }

  /// The number of this block's segments, the first of them, and where one of the row's begins.
  __device__ int segments() const { return segments_; }
  __device__ int first_segment() const { return first_segment_; }
  __device__ int segment_begin(int segment) const {
    const int size = round_up(ceil_div(vocab_size_, kSegments), kVectorSize);
    return min(segment * size, vocab_size_);
  }

  __device__ float at(int token) const {
    if constexpr (!std::is_same_v<T, float>) {
      if (!stored_) return to_float(source_[token]);
    }
    return numbers_[token];
  }
  /// A logit to be changed, after store().
  __device__ float& operator[](int token) const { return numbers_[token]; }

  /// Writes this block's logits as float32, which they stay from then on.
  __device__ void store() {
    if constexpr (!std::is_same_v<T, float>) {
      for_each([&](int token, float logit) { numbers_[token] = logit; });
      stored_ = true;
      __syncthreads();
    }
  }

  /// Calls visit(token, logit) for the tokens first, first + stride and so on, below `end`. It asks
  /// for several logits at a time, since a block alone has many of them to bring.
  template <class Visit>
  __device__ void visit_strided(int first, int end, int stride, Visit visit) const {
    constexpr int kAtOnce = 8;
    for (; first < end; first += kAtOnce * stride) {
      float logits[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) logits[i] = at(min(first + i * stride, end - 1));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * stride < end) visit(first + i * stride, logits[i]);
      }
    }
  }

  /// Calls visit(token, logit) for this thread's tokens of [begin, end), in ascending order.
  template <class Visit>
  __device__ void for_each(int begin, int end, Visit visit) const {
    if constexpr (!kVectors) {
      visit_strided(begin + static_cast<int>(threadIdx.x), end, kSampleThreads, visit);
    } else {
      if constexpr (!std::is_same_v<T, float>) {
        if (!stored_) return visit_vectors(source_, begin, end, visit);
      }
      visit_vectors(numbers_, begin, end, visit);
    }
  }
  template <class Visit>
  __device__ void for_each(Visit visit) const {
    for_each(begin_, end_, visit);
  }

 private:
  /// Calls visit(token, logit) for this thread's tokens of [begin, end), in vectors out of `from`.
  /// The next two of 16 bits are under way while one is visited: they become float32 only then,
  /// since a number is waited for where it is converted.
  template <class From, class Visit>
  __device__ void visit_vectors(const From* from, int begin, int end, Visit visit) const {
    constexpr int kStride = kSampleThreads * kVectorSize;
    constexpr int kUnderWay = sizeof(From) == 2 ? 2 : 1;
    const int last = (end - 1) / kVectorSize * kVectorSize;
    int first = (begin / kVectorSize + static_cast<int>(threadIdx.x)) * kVectorSize;
    if (first >= end) return;
    VectorBits<From> next[kUnderWay];
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) next[i].load(from + min(first + i * kStride, last));
    for (; first < end; first += kStride) {
      float logits[kVectorSize];
      next[0].unpack(logits);
#pragma unroll
      for (int i = 1; i < kUnderWay; ++i) next[i - 1] = next[i];
      next[kUnderWay - 1].load(from + min(first + kUnderWay * kStride, last));
      if (first >= begin && first + kVectorSize <= end) {
#pragma unroll
        for (int i = 0; i < kVectorSize; ++i) visit(first + i, logits[i]);
      } else {
        const int past = min(first + kVectorSize, end);
        for (int token = max(first, begin); token < past; ++token) visit(token, at(token));
      }
    }
  }

  const int vocab_size_;
  float* const numbers_;
  const T* const source_;
  const int segments_;
  const int first_segment_;
  const int begin_, end_;
  bool stored_ = false;  // numbers_ holds the logits, and not source_
};

}  // namespace packhorse::cuda
