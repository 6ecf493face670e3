// Values of the narrow formats. Rounding is that of CUDA's headers for the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace emulated {

inline float half_value(uint32_t bits) {
  const auto raw = __half_raw{static_cast<unsigned short>(bits)};
  return __half2float(__half(raw));
}
inline float bfloat_value(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
inline float e4m3_value(uint32_t bits) {
  const __half_raw raw = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits), __NV_E4M3);
  return half_value(raw.x);
}
inline float e5m2_value(uint32_t bits) { return half_value((bits & 255u) << 8); }
inline uint16_t half_bits(double value) { return __half_raw(__double2half(value)).x; }
inline uint16_t bfloat_bits(float value) { return __nv_bfloat16_raw(__float2bfloat16_rn(value)).x; }
inline uint16_t bfloat_bits(double value) { return __nv_bfloat16_raw(__double2bfloat16(value)).x; }
inline uint8_t e4m3_bits(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace emulated
