// The functions of CUDA's runtime and driver that launchers of kernels call, for one emulated
// device like an H100.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "emulator/emulator.h"
#include "emulator/tensor_copy.h"

namespace emulated {
namespace {

CUresult refuse(const char* what, unsigned long long found) {
  std::fprintf(stderr, "cuTensorMapEncodeTiled: %s: found %llu\n", what, found);
  return CUDA_ERROR_INVALID_VALUE;
}

int bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    default:
      return 4;
  }
}

// The rules are those of the driver's documentation.
CUresult encode(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* base,
                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank < 1 || rank > 5) return refuse("1 to 5 dimensions", rank);
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return refuse("interleaved layouts are not emulated", interleave);
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0)
    return refuse("an address that is a multiple of 16", reinterpret_cast<uintptr_t>(base));
  TensorMap map{};
  map.magic = TensorMap::kMagic;
  map.base = reinterpret_cast<uint64_t>(base);
  map.rank = static_cast<uint8_t>(rank);
  map.element_bytes = static_cast<uint8_t>(bytes_of(type));
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      map.swizzle = 0;
      break;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      map.swizzle = 32;
      break;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      map.swizzle = 64;
      break;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      map.swizzle = 128;
      break;
    default:
      return refuse("a swizzle of 32, 64 or 128 bytes", swizzle);
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (extents[i] == 0 || extents[i] > (1ull << 32))
      return refuse("extents of 1 to 2^32", extents[i]);
    if (box[i] == 0 || box[i] > 256) return refuse("boxes of 1 to 256 in each dimension", box[i]);
    if (steps[i] != 1) return refuse("element strides of 1", steps[i]);
    if (i + 1 < rank) {
      if (strides[i] % 16 != 0 || strides[i] >= (1ull << 40))
        return refuse("strides that are multiples of 16 below 2^40", strides[i]);
      map.strides[i] = strides[i];
    }
    map.extents[i] = extents[i];
    map.box[i] = static_cast<uint16_t>(box[i]);
  }
  const cuuint32_t inner = box[0] * map.element_bytes;
  if (inner % 16 != 0) return refuse("rows of a box that are multiples of 16 bytes", inner);
  if (map.swizzle != 0 && inner > map.swizzle)
    return refuse("rows of a box that are no longer than the swizzle", inner);
  std::memset(to, 0, sizeof(*to));
  std::memcpy(to, &map, sizeof(map));
  return CUDA_SUCCESS;
}

}  // namespace

Memory::Memory(size_t bytes) : bytes_((bytes + 15) / 16 * 16) {
  constexpr size_t kPage = 4096;
  constexpr size_t kGuard = 1 << 20;
  const size_t held = (bytes_ + kPage - 1) / kPage * kPage;
  whole_ = held + 2 * kGuard;
  base_ = mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) throw Error("no memory for the emulator");
  char* const begin = static_cast<char*>(base_) + kGuard;
  mprotect(begin, held, PROT_READ | PROT_WRITE);
  std::memset(begin, 0xff, held);
  // Memory ends where its pages do, if that keeps it aligned as a device's memory would be.
  data_ = begin + (held - bytes_) / 256 * 256;
}

Memory::~Memory() { munmap(base_, whole_); }

}  // namespace emulated

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error of the emulator"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulator"; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const bool fits = attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value <= 227 * 1024;
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = std::strcmp(name, "cuTensorMapEncodeTiled") == 0
                  ? reinterpret_cast<void*>(&emulated::encode)
                  : nullptr;
  *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
