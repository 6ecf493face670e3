// Tests the products in bfloat16 and int8 of MultiplyPanels, in every instruction set that this
// processor has and that has them.
#include <fstream>
#include <iterator>
#include <string>

#include "core/math.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/processor.h"
#include "cpu_test.h"

namespace packhorse::cpu_test {
namespace {

using cpu::kPanelColumns;
using cpu::kPieceBytes;
using cpu::MultiplyPanels;

constexpr int64_t kMostRows = 17;

// Products in int8, and the largest byte of x that they take.
struct Level {
  const cpu::Kernels* kernels;
  void (*multiply)(const MultiplyPanels&);
  int most;
};

#if defined(__aarch64__)

std::vector<Level> levels() {
  const cpu::Isa isa = cpu::cpu_features().isa;
  std::vector<const cpu::Kernels*> found = {&cpu::kNeonKernels};
  if (isa != cpu::Isa::kNeon) found.push_back(&cpu::kNeonDotKernels);
  if (isa == cpu::Isa::kNeonMatmul) found.push_back(&cpu::kNeonMatmulKernels);
  std::vector<Level> result;
  for (const cpu::Kernels* kernels : found) {
    result.push_back({kernels, kernels->multiply_panels_int8, 255});
  }
  return result;
}

#else

// The words of /proc/cpuinfo: whatever ONEDNN_MAX_CPU_ISA hides is tested here.
bool has(const char* feature) {
  std::ifstream file("/proc/cpuinfo");
  return std::find(std::istream_iterator<std::string>(file), {}, feature) !=
         std::istream_iterator<std::string>();
}

std::vector<Level> levels() {
  std::vector<Level> found = {{&cpu::kSse41Kernels, cpu::kSse41Kernels.multiply_panels_int8, 127}};
  if (has("avx2"))
    found.push_back({&cpu::kAvx2Kernels, cpu::kAvx2Kernels.multiply_panels_int8, 127});
  if (has("avx_vnni")) {
    found.push_back({&cpu::kAvx2Kernels, cpu::kAvx2Kernels.multiply_panels_int8_vnni, 255});
  }
  return found;
}

#endif

// A random weight with rows for it, and the weight as `kernels` reads it.
template <class T, class U>
struct Panels {
  Panels(const cpu::Kernels& kernels, int64_t in, int64_t columns, T (*element)(std::mt19937&),
         U (*x_element)(std::mt19937&))
      : in(in), columns(columns) {
    std::mt19937 generator(static_cast<unsigned>(in));
    const int64_t group = kernels.panel_group_bytes / int64_t{sizeof(T)};
    const int64_t piece = kPieceBytes / int64_t{sizeof(T)};
    const int64_t panel = round_up(in, piece) * kPanelColumns;
    packed.resize(static_cast<size_t>(ceil_div(columns, kPanelColumns) * panel));
    for (int64_t n = 0; n < columns; ++n) {
      sums.push_back(0);
      for (int64_t k = 0; k < in; ++k) {
        weight.push_back(element(generator));
        sums.back() += weight.back();
        packed[static_cast<size_t>(n / kPanelColumns * panel + k / group * group * kPanelColumns +
                                   n % kPanelColumns * group + k % group)] = weight.back();
      }
    }
    x.resize(static_cast<size_t>(in * kMostRows));
    for (U& value : x) value = x_element(generator);
  }
  T at(int64_t k, int64_t n) const { return weight[static_cast<size_t>(n * in + k)]; }
  U x_at(int64_t row, int64_t k) const { return x[static_cast<size_t>(row * in + k)]; }
  MultiplyPanels task(int64_t first_row, int64_t rows, void* out) const {
    MultiplyPanels task;
    task.x = x.data() + first_row * in;
    task.x_stride = in;
    task.weight = packed.data();
    task.sums = sums.data();
    task.out = out;
    task.out_stride = columns;
    task.rows = rows;
    task.in_features = in;
    task.columns = columns;
    return task;
  }

  int64_t in, columns;
  std::vector<T> packed, weight;
  std::vector<int32_t> sums;
  std::vector<U> x;
};

#if defined(__aarch64__)
uint16_t random_bfloat16(std::mt19937& generator) {
  return float32_to_bfloat16(std::normal_distribution<float>()(generator));
}
#endif
// The largest products are frequent.
int8_t random_int8(std::mt19937& generator) {
  const int value = static_cast<int>(generator() % 400) - 200;
  return static_cast<int8_t>(std::clamp(value, -127, 127));
}
uint8_t random_uint8(std::mt19937& generator) {
  return static_cast<uint8_t>(std::clamp(static_cast<int>(generator() % 500) - 120, 0, 255));
}

TEST(cpu_panels_of_int8_are_exact) {
  for (const auto& [kernels, multiply, most] : levels()) {
    for (int64_t in : {1, 3, 15, 16, 17, 66, 300}) {
      for (int64_t columns : {1, 16, 17, 50, 64}) {
        Panels<int8_t, uint8_t> panels(*kernels, in, columns, random_int8, random_uint8);
        for (uint8_t& value : panels.x) value = static_cast<uint8_t>(std::min<int>(value, most));
        for (int64_t rows = 0; rows <= kMostRows; ++rows) {
          std::vector<int32_t> found(static_cast<size_t>(rows * columns) + 1, 77);
          multiply(panels.task(0, rows, found.data()));
          bool right = found.back() == 77;  // nothing is written beyond the last column
          for (int64_t row = 0; row < rows; ++row) {
            for (int64_t n = 0; n < columns; ++n) {
              int32_t expected = 0;
              for (int64_t k = 0; k < in; ++k) expected += panels.x_at(row, k) * panels.at(k, n);
              right &= found[static_cast<size_t>(row * columns + n)] == expected;
            }
          }
          CHECK(right);
        }
      }
    }
  }
}

#if defined(__aarch64__)

TEST(cpu_panels_of_bfloat16) {
  for (const auto& [kernels, multiply, most] : levels()) {
    for (int64_t in : {1, 2, 7, 8, 33, 64, 200}) {
      for (int64_t columns : {1, 16, 18, 50, 64}) {
        const Panels<uint16_t, uint16_t> panels(*kernels, in, columns, random_bfloat16,
                                                random_bfloat16);
        const std::vector<float> bias(static_cast<size_t>(columns), 0.5f);
        const auto count = static_cast<size_t>(kMostRows * columns);
        std::vector<float> all(count);
        std::vector<uint16_t> rounded(count);
        MultiplyPanels task = panels.task(0, kMostRows, all.data());
        task.bias = bias.data();
        kernels->multiply_panels[0](task);
        task.out = rounded.data();
        kernels->multiply_panels[1](task);
        bool right = true;
        for (int64_t row = 0; row < kMostRows; ++row) {
          for (int64_t n = 0; n < columns; ++n) {
            double expected = 0.5, size = 0.5;
            for (int64_t k = 0; k < in; ++k) {
              const double product = double{bfloat16_to_float32(panels.x_at(row, k))} *
                                     bfloat16_to_float32(panels.at(k, n));
              expected += product;
              size += std::abs(product);
            }
            const auto i = static_cast<size_t>(row * columns + n);
            right &= std::abs(all[i] - expected) <= 1e-6 * size;
            right &= rounded[i] == float32_to_bfloat16(all[i]);
          }
        }
        // A row has its bits wherever it stands, in tiles of any height.
        for (int64_t rows = 1; rows <= 7; ++rows) {
          for (int64_t first : {int64_t{0}, kMostRows - rows}) {
            std::vector<float> some(static_cast<size_t>(rows * columns));
            MultiplyPanels part = panels.task(first, rows, some.data());
            part.bias = bias.data();
            kernels->multiply_panels[0](part);
            right &= std::equal(some.begin(), some.end(), all.begin() + first * columns);
          }
        }
        CHECK(right);
      }
    }
  }
}

TEST(cpu_panels_finish_rows) {
  for (const auto& [kernels, multiply, most] : levels()) {
    const Panels<uint16_t, uint16_t> panels(*kernels, 40, 21, random_bfloat16, random_bfloat16);
    std::vector<float> plain(5 * 21), active(plain.size());
    MultiplyPanels task = panels.task(0, 5, plain.data());
    kernels->multiply_panels[0](task);
    task.activation = Activation::kGelu;
    task.out = active.data();
    kernels->multiply_panels[0](task);
    for (size_t i = 0; i < plain.size(); ++i) {
      const double expected = activate(Activation::kGelu, plain[i]);
      CHECK(std::abs(active[i] - expected) <= 1e-6 * (1 + std::abs(expected)));
    }
  }
}

#endif

}  // namespace
}  // namespace packhorse::cpu_test
