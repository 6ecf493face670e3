// Built-in functions of device code. What compares or exchanges values between threads stops the
// running thread until all that take part have come.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace emulated {

enum class Shuffle : uint8_t { kIndex, kUp, kDown, kXor };
enum class Reduction : uint8_t { kAdd, kMin, kMax, kMinSigned, kMaxSigned, kAnd, kOr, kXor };

uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, int lane, int width);
uint32_t ballot(uint32_t mask, bool value);
uint32_t match_any(uint32_t mask, uint64_t value);
uint32_t reduce(Reduction kind, uint32_t mask, uint32_t value);
uint32_t active_mask();
void sync_warp(uint32_t mask);
/// A barrier of all threads; returns how many came with `value`.
int sync_block(bool value);
/// Lets other threads run.
void pause();
[[noreturn]] void trap();
uint32_t shared_address(const void* pointer);
void* shared_pointer(uint32_t address);
/// Fails unless the running thread may access the memory.
void pause_at_atomic();

template <class T>
T shuffled(Shuffle kind, uint32_t mask, T value, int lane, int width) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(kind, mask, bits, lane, width);
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

template <class T, class F>
T change(T* at, F function) {
  pause_at_atomic();
  const T before = *at;
  *at = function(before);
  return before;
}

}  // namespace emulated

#define warpSize 32

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return emulated::shuffled(emulated::Shuffle::kIndex, mask, value, lane, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return emulated::shuffled(emulated::Shuffle::kUp, mask, value, static_cast<int>(by), width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  return emulated::shuffled(emulated::Shuffle::kDown, mask, value, static_cast<int>(by), width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  return emulated::shuffled(emulated::Shuffle::kXor, mask, value, with, width);
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  return emulated::ballot(mask, value != 0);
}
inline int __any_sync(unsigned mask, int value) { return emulated::ballot(mask, value != 0) != 0; }
inline int __all_sync(unsigned mask, int value) {
  return emulated::ballot(mask, value != 0) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return emulated::match_any(mask, bits);
}
inline unsigned __activemask() { return emulated::active_mask(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated::sync_warp(mask); }
inline void __syncthreads() { emulated::sync_block(false); }
inline int __syncthreads_or(int value) { return emulated::sync_block(value != 0) != 0; }
inline int __syncthreads_count(int value) { return emulated::sync_block(value != 0); }
inline int __syncthreads_and(int value) { return emulated::sync_block(value == 0) == 0; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return emulated::reduce(emulated::Reduction::kAdd, mask, value);
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return static_cast<int>(
      emulated::reduce(emulated::Reduction::kAdd, mask, static_cast<unsigned>(value)));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return emulated::reduce(emulated::Reduction::kMax, mask, value);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return emulated::reduce(emulated::Reduction::kMin, mask, value);
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return static_cast<int>(
      emulated::reduce(emulated::Reduction::kMaxSigned, mask, static_cast<unsigned>(value)));
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return static_cast<int>(
      emulated::reduce(emulated::Reduction::kMinSigned, mask, static_cast<unsigned>(value)));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return emulated::reduce(emulated::Reduction::kOr, mask, value);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return emulated::reduce(emulated::Reduction::kAnd, mask, value);
}

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return static_cast<T>(x + value); });
}
template <class T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return static_cast<T>(x - value); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return std::max(x, value); });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return std::min(x, value); });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return static_cast<T>(x | value); });
}
template <class T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return static_cast<T>(x & value); });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return emulated::change(at, [=](T x) { return x == expected ? value : x; });
}
inline unsigned atomicInc(unsigned* at, unsigned most) {
  return emulated::change(at, [=](unsigned x) { return x >= most ? 0u : x + 1; });
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T __ldca(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
T __ldlu(const T* at) {
  return *at;
}
template <class T>
T __ldcv(const T* at) {
  emulated::pause();
  return *at;
}
template <class T>
void __stcs(T* at, std::type_identity_t<T> value) {
  *at = value;
}
template <class T>
void __stcg(T* at, std::type_identity_t<T> value) {
  *at = value;
}
template <class T>
void __stwb(T* at, std::type_identity_t<T> value) {
  *at = value;
}
template <class T>
void __stwt(T* at, std::type_identity_t<T> value) {
  *at = value;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emulated::pause(); }
[[noreturn]] inline void __trap() { emulated::trap(); }
[[noreturn]] inline void __brkpt() { emulated::trap(); }
inline size_t __cvta_generic_to_shared(const void* pointer) {
  return emulated::shared_address(pointer);
}
inline void* __cvta_shared_to_generic(size_t address) {
  return emulated::shared_pointer(static_cast<uint32_t>(address));
}
inline size_t __cvta_generic_to_global(const void* pointer) {
  return reinterpret_cast<size_t>(pointer);
}

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return std::exp(a); }
inline float __exp2f(float a) { return std::exp2(a); }
inline float __logf(float a) { return std::log(a); }
inline float __log2f(float a) { return std::log2(a); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __sinf(float a) { return std::sin(a); }
inline float __cosf(float a) { return std::cos(a); }
inline float __tanhf(float a) { return std::tanh(a); }
inline float __saturatef(float a) { return std::min(std::max(a, 0.0f), 1.0f); }
inline float rsqrtf(float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline int __float2int_rd(float a) { return static_cast<int>(std::floor(a)); }
inline int __float2int_ru(float a) { return static_cast<int>(std::ceil(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline unsigned __float2uint_rn(float a) { return static_cast<unsigned>(std::nearbyint(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline int __popc(unsigned a) { return std::popcount(a); }
inline int __popcll(unsigned long long a) { return std::popcount(a); }
inline int __ffs(int a) { return a == 0 ? 0 : std::countr_zero(static_cast<unsigned>(a)) + 1; }
inline int __ffsll(long long a) {
  return a == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(a)) + 1;
}
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }
inline int __clzll(long long a) { return std::countl_zero(static_cast<unsigned long long>(a)); }
inline unsigned __brev(unsigned a) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (a >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (nibble & 7u))) & 255u;
    if (nibble & 8u) byte = byte & 128u ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (by & 31u) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (by & 31u));
}
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __mul24(int a, int b) { return a * b; }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int8_t>(static_cast<unsigned>(a) >> (8 * i)) *
         static_cast<int8_t>(static_cast<unsigned>(b) >> (8 * i));
  }
  return c;
}

// Overloads of single types, as CUDA has them: templates of other libraries come second to them.
#define EMULATED_EXTREMA(T)                           \
  constexpr T min(T a, T b) { return b < a ? b : a; } \
  constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATED_EXTREMA(int)
EMULATED_EXTREMA(unsigned)
EMULATED_EXTREMA(long)
EMULATED_EXTREMA(unsigned long)
EMULATED_EXTREMA(long long)
EMULATED_EXTREMA(unsigned long long)
#undef EMULATED_EXTREMA
constexpr unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
constexpr unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
constexpr unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
constexpr unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

// Functions of float16 and bfloat16 that the host's headers declare for device code only.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(
      std::fma(double{__half2float(a)}, double{__half2float(b)}, double{__half2float(c)}));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(std::fma(double{__bfloat162float(a)}, double{__bfloat162float(b)},
                                    double{__bfloat162float(c)}));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                        __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(__low2bfloat16(a), __low2bfloat16(b), __low2bfloat16(c)),
                            __hfma(__high2bfloat16(a), __high2bfloat16(b), __high2bfloat16(c)));
}
template <class T>
T __hfma_relu(T a, T b, T c) {
  return __hmax(__hfma(a, b, c), T(0.0f));
}
template <class T>
T __hfma2_relu(T a, T b, T c) {
  return __hmax2(__hfma2(a, b, c), T{});
}
inline __half hrsqrt(__half a) { return __float2half(rsqrtf(__half2float(a))); }
inline __half hexp(__half a) { return __float2half(std::exp(__half2float(a))); }
inline __half2 h2rsqrt(__half2 a) {
  return __halves2half2(hrsqrt(__low2half(a)), hrsqrt(__high2half(a)));
}
inline __half2 h2exp(__half2 a) {
  return __halves2half2(hexp(__low2half(a)), hexp(__high2half(a)));
}
inline int __half2int_rn(__half a) { return __float2int_rn(__half2float(a)); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// Clusters of one block.
inline unsigned __clusterRelativeBlockRank() { return 0; }
inline unsigned __clusterSizeInBlocks() { return 1; }
inline void __cluster_barrier_arrive() {}
inline void __cluster_barrier_wait() {}
inline void* __cluster_map_shared_rank(const void* shared, unsigned) {
  return const_cast<void*>(shared);
}
