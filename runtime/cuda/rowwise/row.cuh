// Rows of 16-bit elements, held in the registers of a group of threads and normalised there in
// float32.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "cuda/common/reduce.cuh"
#include "cuda/common/vector.cuh"
#include "ops/args/common.h"

namespace packhorse::cuda {

/// One row, spread over the kThreads threads of a group: thread i holds the vectors i, i +
/// kThreads, i + 2 kThreads, ... The row is the sum of up to kSources rows in memory. Each source
/// is kept as it was read, with 16 bits per element, which takes half the registers of float32, so
/// that more rows can be in flight at once. Elements past the end of the row are zeros.
template <class T, int kThreads, int kVectors, int kSources>
struct Row {
  uint4 bits[kSources][kVectors];

  /// Returns the first column of this thread's `vector`-th vector.
  __device__ static int column(int vector) {
    return (static_cast<int>(threadIdx.x) % kThreads + vector * kThreads) * kVectorSize;
  }

  /// Loads a source; null stands for zeros. The values are not used here, so that a thread issues
  /// all its loads before the first arrives.
  __device__ void load(int source, const T* from, int columns) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      bits[source][v] = from != nullptr && column(v) < columns
                            ? *reinterpret_cast<const uint4*>(from + column(v))
                            : make_uint4(0, 0, 0, 0);
    }
  }

  /// Returns the sum of the sources for one vector.
  __device__ void get(int vector, float (&value)[kVectorSize]) const {
    unpack<T>(value, bits[0][vector]);
#pragma unroll
    for (int s = 1; s < kSources; ++s) {
      float more[kVectorSize];
      unpack<T>(more, bits[s][vector]);
#pragma unroll
      for (int i = 0; i < kVectorSize; ++i) value[i] += more[i];
    }
  }
};

/// A row whose sources have been added up once, in float32: more registers than Row and less
/// arithmetic.
template <class T, int kThreads, int kVectors, int kSources>
struct SummedRow {
  using Source = Row<T, kThreads, kVectors, kSources>;
  float values[kVectors][kVectorSize];

  __device__ static int column(int vector) { return Source::column(vector); }
  __device__ void set(const Source& row) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) row.get(v, values[v]);
  }
  __device__ void get(int vector, float (&value)[kVectorSize]) const {
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) value[i] = values[vector][i];
  }
};

/// gamma and beta of the columns that a thread holds, read when they are needed.
struct WeightInMemory {
  const NormWeight& weight;
  __device__ explicit WeightInMemory(const NormWeight& weight, int = 0) : weight(weight) {}
  __device__ void get(int, int column, float (&gamma)[kVectorSize],
                      float (&beta)[kVectorSize]) const {
    if (weight.gamma != nullptr) load_vector(gamma, weight.gamma + column);
    if (weight.beta != nullptr) load_vector(beta, weight.beta + column);
  }
};

/// gamma and beta of the columns that a thread holds, loaded ahead of the rows: for small batches,
/// where another wait for memory would show, and for groups that go through many rows.
template <class RowType, int kVectors>
struct WeightInRegisters {
  float gamma[kVectors][kVectorSize];
  float beta[kVectors][kVectorSize];

  __device__ WeightInRegisters(const NormWeight& weight, int columns) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = RowType::column(v);
#pragma unroll
      for (int i = 0; i < kVectorSize; ++i) gamma[v][i] = beta[v][i] = 0;
      if (column >= columns) continue;
      WeightInMemory(weight).get(v, column, gamma[v], beta[v]);
    }
  }
  __device__ void get(int vector, int, float (&to_gamma)[kVectorSize],
                      float (&to_beta)[kVectorSize]) const {
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) {
      to_gamma[i] = gamma[vector][i];
      to_beta[i] = beta[vector][i];
    }
  }
};

/// Normalises kRows rows of one group together by LayerNorm (variance from the centred values) or
/// RMSNorm, or not at all where there is no gamma, and calls store(row, column, values) with the
/// results. `scratch`: kRows x 64 floats.
template <int kThreads, int kVectors, int kRows, class RowType, class Weight, class Store>
__device__ void normalize_rows(const RowType (&rows)[kRows], const NormWeight& weight,
                               const Weight& columns_weight, int columns, float* scratch,
                               Store store) {
  const int counted = columns - weight.padding;
  const int whole = counted / kVectorSize * kVectorSize;  // columns of vectors without padding
  const float width = static_cast<float>(counted);
  float mean[kRows] = {};
  float factor[kRows];
  if (weight.gamma != nullptr) {
    if (weight.kind == NormKind::kLayer) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          float value[kVectorSize];
          rows[r].get(v, value);
#pragma unroll
          for (float x : value) mean[r] += x;
        }
      }
      group_sum<kThreads>(mean, scratch);
#pragma unroll
      for (float& x : mean) x /= width;
    }
    float squares[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (RowType::column(v) >= whole) continue;
        float value[kVectorSize];
        rows[r].get(v, value);
#pragma unroll
        for (float x : value) squares[r] += (x - mean[r]) * (x - mean[r]);
      }
    }
    if (whole < counted) {  // the vector with both columns and padding
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (RowType::column(v) != whole) continue;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float value[kVectorSize];
          rows[r].get(v, value);
#pragma unroll
          for (int i = 0; i < kVectorSize; ++i) {
            const float difference = whole + i < counted ? value[i] - mean[r] : 0.0f;
            squares[r] += difference * difference;
          }
        }
      }
    }
    group_sum<kThreads>(squares, scratch + kRows * 32);
#pragma unroll
    for (int r = 0; r < kRows; ++r) factor[r] = rsqrtf(squares[r] / width + weight.eps);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = RowType::column(v);
    if (column >= columns) continue;
    float gamma[kVectorSize];
    float beta[kVectorSize] = {};
    columns_weight.get(v, column, gamma, beta);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float value[kVectorSize];
      rows[r].get(v, value);
      if (weight.gamma != nullptr) {
#pragma unroll
        for (int i = 0; i < kVectorSize; ++i) {
          value[i] = (value[i] - mean[r]) * factor[r] * gamma[i] + beta[i];
        }
      }
      store(r, column, value);
    }
  }
}

/// Threads of a block that folds a row.
inline constexpr int kFoldThreads = 512;

/// Normalises a row too wide for registers. The block goes over the row up to three times, each
/// time calling load(values, first column), which after the first time finds the row in the cache,
/// and writes it once by store(values, first column). `scratch` is shared memory of 64 floats.
template <class Load, class Store>
__device__ void fold_row(int columns, Load load, const NormWeight& weight, Store store,
                         float* scratch) {
  const auto fold = [&](auto visit) {
    for (int column = threadIdx.x * kVectorSize; column < columns;
         column += kFoldThreads * kVectorSize) {
      float value[kVectorSize] = {};
      load(value, column);
      visit(value, column);
    }
  };
  const int counted = columns - weight.padding;
  const float width = static_cast<float>(counted);
  float mean[1] = {};
  float squares[1] = {};
  if (weight.gamma != nullptr) {
    if (weight.kind == NormKind::kLayer) {
      fold([&](const float (&value)[kVectorSize], int) {
        for (float x : value) mean[0] += x;
      });
      group_sum<kFoldThreads>(mean, scratch);
      mean[0] /= width;
    }
    fold([&](const float (&value)[kVectorSize], int column) {
      for (int i = 0; i < kVectorSize; ++i) {
        const float difference = column + i < counted ? value[i] - mean[0] : 0.0f;
        squares[0] += difference * difference;
      }
    });
    group_sum<kFoldThreads>(squares, scratch + 32);
  }
  const float factor = rsqrtf(squares[0] / width + weight.eps);
  fold([&](float (&value)[kVectorSize], int column) {
    if (weight.gamma != nullptr) {
      float gamma[kVectorSize];
      float beta[kVectorSize] = {};
      load_vector(gamma, weight.gamma + column);
      if (weight.beta != nullptr) load_vector(beta, weight.beta + column);
      for (int i = 0; i < kVectorSize; ++i) {
        value[i] = (value[i] - mean[0]) * factor * gamma[i] + beta[i];
      }
    }
    store(value, column);
  });
}

/// Decides, by the width alone, how rows of `columns` elements are spread: calls
/// launch.operator()<threads of a row, vectors of a thread>(). A row of up to 1280 elements gets a
/// warp, which needs no barrier, a longer one a block of 128 or 512 threads; <kFoldThreads, 0>
/// means folding (over 32768).
template <class Launch>
void dispatch_row(int64_t columns, Launch launch) {
  const auto spread = [&]<int kThreads, int kFirst>(int64_t vectors) {
    switch (ceil_div(vectors, kThreads)) {
      case 1:
        if constexpr (kFirst == 1) return launch.template operator()<kThreads, 1>();
        [[fallthrough]];
      case 2:
        return launch.template operator()<kThreads, 2>();
      case 3:
        return launch.template operator()<kThreads, 3>();
      default:
        return launch.template operator()<kThreads, 4>();
    }
  };
  const int64_t vectors = columns / kVectorSize;
  if (vectors <= 128) return spread.template operator()<32, 1>(vectors);
  if (vectors <= 160) return launch.template operator()<32, 5>();
  if (vectors <= 512) return spread.template operator()<128, 2>(vectors);
  if (vectors <= 2048) return spread.template operator()<512, 2>(vectors);
  if (vectors <= 3072) return launch.template operator()<512, 6>();
  if (vectors <= 4096) return launch.template operator()<512, 8>();
  launch.template operator()<kFoldThreads, 0>();
}

/// The number of threads of a block, and the number of groups of kThreads threads in it.
template <int kThreads>
inline constexpr int kBlockThreads = kThreads == 32 ? 128 : kThreads;
template <int kThreads>
inline constexpr int kBlockGroups = kBlockThreads<kThreads> / kThreads;

/// Most elements of a batch that is bound by latency: there each group has one row, so that all
/// rows are in flight at once.
inline constexpr int64_t kSkinnyElements = 3 << 20;

/// Most elements for which it pays to read gamma and beta ahead of the rows, in spite of the
/// registers that this takes.
inline constexpr int64_t kAheadElements = 12 << 20;

}  // namespace packhorse::cuda
