// Helpers of the emulated tests: arrays of an emulated device, random numbers, and seeds.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/format.h"
#include "emulator/emulator.h"
#include "packhorse/types.h"
#include "test.h"

namespace packhorse::emulated_test {

/// An array on the emulated device: NaN at first, and surrounded by what nobody may access.
template <class T>
class Array {
 public:
  explicit Array(size_t size) : memory_(std::max<size_t>(size, 1) * sizeof(T)), size_(size) {}
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    std::memcpy(memory_.data(), values.data(), size_ * sizeof(T));
  }
  T* data() { return static_cast<T*>(memory_.data()); }
  const T* data() const { return static_cast<const T*>(memory_.data()); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  size_t size() const { return size_; }
  void fill_bytes(int value) { std::memset(memory_.data(), value, size_ * sizeof(T)); }
  bool same_bits(const Array& other) const {
    return size_ == other.size_ && std::memcmp(data(), other.data(), size_ * sizeof(T)) == 0;
  }

 private:
  emulated::Memory memory_;
  size_t size_;
};

template <class T>
inline constexpr DType kDType = std::is_same_v<T, __half> ? DType::kFloat16 : DType::kBFloat16;
/// The largest relative error of one rounding.
template <class T>
inline constexpr double kEpsilon = std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8;

inline double to_double(__half x) { return __half2float(x); }
inline double to_double(__nv_bfloat16 x) { return __bfloat162float(x); }
inline double to_double(float x) { return x; }
template <class T>
T rounded(double x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __double2half(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __double2bfloat16(x);
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
void fill_normal(Array<T>& array, std::mt19937& random, double scale = 1) {
  std::normal_distribution<double> normal(0, scale);
  for (size_t i = 0; i < array.size(); ++i) array[i] = rounded<T>(normal(random));
}

/// The largest distance of `bucket_bias`: larger ones count as this one.
inline constexpr int kMostDistance = 70;

/// Numbers of a term of buckets, as BucketBias::by_distance of `heads` heads.
inline std::vector<float> bucket_bias(int heads) {
  std::vector<float> numbers(static_cast<size_t>(heads * (kMostDistance + 1)));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = std::sin(static_cast<float>(i) / 4);
  }
  return numbers;
}
/// The number of a head for keys so far to the left.
inline double bucket_number(const Array<float>& numbers, int head, int distance) {
  const int place = kMostDistance - std::min(distance, kMostDistance);
  return numbers[static_cast<size_t>(head * (kMostDistance + 1) + place)];
}

/// The largest difference from float64 results of magnitude around 1; infinite where one is NaN.
template <class T>
double error_of(const Array<T>& found, const std::vector<double>& expected) {
  double most = found.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    const double difference =
        std::abs(to_double(found[i]) - expected[i]) / std::max(1.0, std::abs(expected[i]));
    most = difference >= 0 ? std::max(most, difference) : INFINITY;
  }
  return most;
}

}  // namespace packhorse::emulated_test

/// Fails, and says what was found, where an error is over a limit.
#define CHECK_WITHIN(error, limit)                                                           \
  do {                                                                                       \
    const double found_error = (error);                                                      \
    if (!(found_error <= (limit))) {                                                         \
      packhorse::test::fail(__FILE__, __LINE__,                                              \
                            packhorse::concat(#error, ": found ", found_error, ", at most ", \
                                              static_cast<double>(limit), " expected"));     \
    }                                                                                        \
  } while (0)
