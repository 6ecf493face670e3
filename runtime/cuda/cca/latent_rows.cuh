// The rows of tokens' latents: in the batch, or in the pages that keep the end of each sequence.
#pragma once

#include "cuda/common/token_position.cuh"
#include "cuda/common/vector.cuh"
#include "ops/args/cca.h"

namespace packhorse::cuda {

/// A token's place in its sequence.
struct LatentPlace {
  int sequence;
  int begin;     // first row of the sequence in the batch
  int end;       // row after its last one in the batch
  int position;  // position of the token in the whole sequence

  __device__ LatentPlace(const CcaArgs& args, int sequences, int token) {
    const int32_t* begins = args.batch.cu_seqlens;
    int first = 0;  // the sequence is one of [first, last)
    int last = sequences;
    while (last - first > 1) {
      const int middle = (first + last) / 2;
      (begins[middle] <= token ? first : last) = middle;
    }
    sequence = first;
    begin = begins[first];
    end = begins[first + 1];
    position = token - begin;
    if (args.pages.rows.rank > 0) position = args.pages.kv_lens[first] - (end - token);
  }
};

/// Returns a row of a tensor whose strides are 32-bit numbers, which makes the product one
/// instruction.
template <class T>
__device__ T* row_of(const TensorView& view, int row) {
  return static_cast<T*>(view.data) + int64_t{row} * static_cast<int>(view.row_stride);
}

template <class T>
__device__ T* latents_of(const CcaArgs& args, int token) {
  return row_of<T>(args.latents, token);
}

/// Returns the row of the state that a position has, by the page in the table.
__device__ inline int64_t state_row(const LatentPages& pages, int sequence, int position) {
  constexpr int kTokens = static_cast<int>(kPageTokens);
  const int64_t page = pages.table[sequence * pages.table_stride + position / kTokens];
  return page * pages.slots + position % kTokens % static_cast<int>(pages.slots);
}

template <class T>
__device__ T* state_of(const LatentPages& pages, int sequence, int position) {
  return static_cast<T*>(pages.rows.data) +
         state_row(pages, sequence, position) * pages.rows.row_stride;
}

/// Returns the latents of the token `back` tokens before this one; null before the beginning of the
/// sequence.
template <class T>
__device__ const T* latents_before(const CcaArgs& args, int token, const LatentPlace& place,
                                   int back) {
  if (token - back >= place.begin) return latents_of<T>(args, token - back);
  if (place.position - back < 0 || args.pages.rows.rank == 0) return nullptr;
  return state_of<T>(args.pages, place.sequence, place.position - back);
}

/// Returns the delayed columns of values that a token takes from the token before it; null where it
/// is the first of its sequence.
template <class T>
__device__ const T* delayed_values(const CcaArgs& args, int token, const LatentPlace& place) {
  const T* row = latents_before<T>(args, token, place, 1);
  if (row == nullptr) return nullptr;
  // A row of the state has no values that are not delayed.
  const bool in_batch = token > place.begin;
  return row + args.mixed_columns() + (in_batch ? args.delayed_column : 0);
}

/// Copies `count` elements by a warp; where `from` is null, it writes the numbers at `otherwise`,
/// or zeros where that is null, too. kVectors: whether addresses and the count are multiples of
/// eight elements.
template <bool kVectors, class T>
__device__ void copy_by_warp(T* to, const T* from, const float* otherwise, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (kVectors) {
    for (int c = lane * kVectorSize; c < count; c += 32 * kVectorSize) {
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (from != nullptr) {
        bits = *reinterpret_cast<const uint4*>(from + c);
      } else if (otherwise != nullptr) {
        T values[kVectorSize];
        for (int i = 0; i < kVectorSize; ++i) values[i] = Element<T>::from(otherwise[c + i]);
        memcpy(&bits, values, sizeof(bits));
      }
      *reinterpret_cast<uint4*>(to + c) = bits;
    }
  } else {
    for (int c = lane; c < count; c += 32) {
      to[c] = from != nullptr        ? from[c]
              : otherwise != nullptr ? Element<T>::from(otherwise[c])
                                     : Element<T>::from(0.0f);
    }
  }
}

/// Writes the values of one token by a warp: its own columns, then those of the token before.
template <bool kVectors, class T>
__device__ void shift_values(const CcaArgs& args, int token, const T* delayed) {
  const int64_t mixed = args.mixed_columns();
  T* out = row_of<T>(args.out, token) + mixed;
  const int own = args.delayed_column;
  copy_by_warp<kVectors, T>(out, latents_of<T>(args, token) + mixed, nullptr, own);
  copy_by_warp<kVectors, T>(out + own, delayed,
                            args.first_values == nullptr ? nullptr : args.first_values + own,
                            static_cast<int>(args.value_columns()) - own);
}

/// Returns whether the state keeps a token: no later token of the same step takes its row.
__device__ inline bool is_kept(const LatentPages& pages, int token, const LatentPlace& place) {
  const bool page_goes_on = place.position % kPageTokens + pages.slots < kPageTokens;
  return place.position >= 0 && !(token + pages.slots < place.end && page_goes_on);
}

}  // namespace packhorse::cuda
