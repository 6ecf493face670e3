// The emulator itself: right kernels give right numbers for every seed, and wrong ones are found.
#include "cuda/common/tensor_map.h"
#include "emulated_test.h"
#include "fault_kernels.h"

namespace packhorse::emulated_test {
namespace {

constexpr unsigned kSeeds = 9;

/// Returns the outcome of a kernel over all seeds: "" where all results are right, "wrong" where
/// one is not, or the message of an Error.
template <class Run>
std::string found(Run run) {
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    emulated::set_seed(seed);
    try {
      if (!run()) return "wrong";
    } catch (const emulated::Error& error) {
      return error.what();
    }
  }
  return "";
}

void expect(const char* file, int line, const std::string& found, const std::string& part) {
  if (part.empty() ? found.empty() : found.find(part) != found.npos) return;
  test::fail(file, line, "found \"" + found + "\", expected \"" + part + "\"");
}
#define EXPECT_FOUND(found, part) expect(__FILE__, __LINE__, found, part)

std::string rotation(Fault fault) {
  Array<uint32_t> from(128), to(128);
  for (uint32_t i = 0; i < 128; ++i) from[i] = 1000 + i;
  return found([&] {
    to.fill_bytes(0);
    launch_rotation(fault, from.data(), to.data());
    for (uint32_t i = 0; i < 128; ++i) {
      if (to[i] != 1000 + (i + 32) % 128) return false;
    }
    return true;
  });
}

TEST(faults_of_shared_memory) {
  EXPECT_FOUND(rotation(Fault::kNone), "");
  EXPECT_FOUND(rotation(Fault::kNoWait), "wrong");
  EXPECT_FOUND(rotation(Fault::kNoBarrier), "wrong");
  EXPECT_FOUND(rotation(Fault::kOutsideShared), "outside of what the block has");
  EXPECT_FOUND(rotation(Fault::kOutsideGlobal), "outside of all memory");
  EXPECT_FOUND(rotation(Fault::kWrongCount), "threads come to barrier 0 for");
}

TEST(faults_of_lanes) {
  Array<uint32_t> from(32), to(32);
  for (uint32_t i = 0; i < 32; ++i) from[i] = i * i;
  const auto sum = [&](Fault fault) {
    return found([&] {
      launch_sum(fault, from.data(), to.data());
      return to[0] == 10416 && to[31] == 10416;
    });
  };
  EXPECT_FOUND(sum(Fault::kNone), "");
  EXPECT_FOUND(sum(Fault::kDivergent), "lanes of a warp meet at different instructions");
}

TEST(faults_of_tensor_copies) {
  constexpr int kRows = 14, kColumns = 72;  // the box ends outside of both
  Array<uint16_t> from(kRows * kColumns), to(512);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i + 1);
  const CUtensorMap map =
      cuda::matrix_tensor_map(from.data(), DType::kFloat16, kRows, kColumns, kColumns, 8, 64);
  const auto box = [&](Fault fault) {
    return found([&] {
      to.fill_bytes(0);
      launch_box(fault, map, to.data());
      for (int i = 0; i < 512; ++i) {
        const int row = 8 + i / 64, column = 16 + ((i % 64 / 8) ^ (i / 64)) * 8 + i % 8;
        const int expected = row < kRows && column < kColumns ? row * kColumns + column + 1 : 0;
        if (to[static_cast<size_t>(i)] != expected) return false;
      }
      return true;
    });
  };
  EXPECT_FOUND(box(Fault::kNone), "");
  EXPECT_FOUND(box(Fault::kNoWait), "wrong");
  EXPECT_FOUND(box(Fault::kWrongParity), "wrong");
  EXPECT_FOUND(box(Fault::kTooFewBytes), "wait for mbarrier");
  EXPECT_FOUND(box(Fault::kNoBarrierFence), "initialised with no fence since");
  CHECK_THROWS_AS(RuntimeError,
                  cuda::matrix_tensor_map(from.data(), DType::kFloat16, kRows, 68, 68, 8, 64),
                  "cuTensorMapEncodeTiled failed");
}

TEST(faults_of_products) {
  Array<uint16_t> a(64 * 16), b(16 * 16);
  Array<float> d(64 * 16);
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> expected(d.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = __half_raw(rounded<__half>(normal(random))).x;
  for (size_t i = 0; i < b.size(); ++i) b[i] = __half_raw(rounded<__half>(normal(random))).x;
  const auto value = [](uint16_t bits) { return to_double(__half(__half_raw{bits})); };
  for (size_t i = 0; i < d.size(); ++i) {
    for (size_t k = 0; k < 16; ++k)
      expected[i] += value(a[i / 16 * 16 + k]) * value(b[i % 16 * 16 + k]);
  }
  const auto product = [&](Fault fault, bool registers) {
    return found([&] {
      d.fill_bytes(0);
      launch_product(fault, registers, a.data(), b.data(), d.data());
      return error_of(d, expected) < 1e-6;
    });
  };
  for (const bool registers : {false, true}) {
    EXPECT_FOUND(product(Fault::kNone, registers), "");
    EXPECT_FOUND(product(Fault::kNoWait, registers), "wrong");
    EXPECT_FOUND(product(Fault::kNoFence, registers), "no fence.proxy.async since");
    EXPECT_FOUND(product(Fault::kNoProductFence, registers), "wgmma without wgmma.fence");
  }
  EXPECT_FOUND(product(Fault::kWrongStride, false), "wrong");
  EXPECT_FOUND(product(Fault::kChangedRegisters, true), "registers of A were changed");
}

TEST(products_of_bytes) {
  Array<int8_t> a(16 * 32), b(8 * 32);
  Array<int32_t> d(16 * 8);
  std::mt19937 random(2);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int8_t>(random());
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int8_t>(random());
  for (const bool is_unsigned : {false, true}) {
    emulated::set_seed(0);
    for (size_t i = 0; i < d.size(); ++i) d[i] = static_cast<int32_t>(i);
    launch_bytes(is_unsigned, a.data(), b.data(), d.data());
    for (size_t i = 0; i < d.size(); ++i) {
      int sum = static_cast<int>(i);
      for (size_t k = 0; k < 32; ++k) {
        const int8_t x = a[i / 8 * 32 + k];
        sum += (is_unsigned ? static_cast<uint8_t>(x) : x) * b[i % 8 * 32 + k];
      }
      CHECK(d[i] == sum);
    }
  }
}

TEST(blocks_in_turns) {
  constexpr int kBlocks = 5;
  Array<unsigned> counter(1);
  Array<uint32_t> to(kBlocks);
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    for (const unsigned resident : {1, 3, 5, 9}) {
      emulated::set_seed(seed, resident);
      counter[0] = 0;
      to.fill_bytes(0xff);
      launch_meeting(kBlocks, resident < kBlocks ? 100 : 100'000, counter.data(), to.data());
      uint32_t met = 0;
      for (size_t i = 0; i < kBlocks; ++i) met += to[i];
      CHECK(resident < kBlocks ? met >= 1 && met <= resident : met == kBlocks);
    }
  }
}

}  // namespace
}  // namespace packhorse::emulated_test
