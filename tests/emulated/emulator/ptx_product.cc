// Tensor cores: mma.sync, wgmma, and the instructions that load and store their matrices.
//
// An instruction adds the exact sum of its products to each float32 of the accumulator, in ascending
// order of k and in float64, and rounds once. A device may round otherwise; but two kernels that issue
// the same instructions on the same numbers get the same bits here as there.
#include <algorithm>
#include <array>
#include <vector>

#include "emulator/actions.h"
#include "emulator/machine.h"
#include "emulator/numbers.h"
#include "emulator/tensor_copy.h"

namespace emulated {
namespace {

struct Format {
  int bits = 16;
  float (*value)(uint32_t) = half_value;
  bool integer = false;
};

float signed_byte(uint32_t bits) { return static_cast<int8_t>(bits); }
float unsigned_byte(uint32_t bits) { return static_cast<float>(bits & 255u); }
float tf32_value(uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }

Format format_of(Run& run, const std::string& name) {
  if (name == "f16") return {16, half_value};
  if (name == "bf16") return {16, bfloat_value};
  if (name == "e4m3") return {8, e4m3_value};
  if (name == "e5m2") return {8, e5m2_value};
  if (name == "tf32") return {32, tf32_value};
  if (name == "s8") return {8, signed_byte, true};
  if (name == "u8") return {8, unsigned_byte, true};
  run.fail("products of " + name + " are not emulated");
}

// The numbers of all 16-bit patterns, so that none is converted twice.
const std::vector<float>& table_of(const Format& format) {
  static std::vector<std::pair<float (*)(uint32_t), std::vector<float>>> tables;
  for (const auto& [value, table] : tables) {
    if (value == format.value) return table;
  }
  std::vector<float> table(size_t{1} << std::min(format.bits, 16));
  for (size_t i = 0; i < table.size(); ++i) table[i] = format.value(static_cast<uint32_t>(i));
  tables.reserve(16);
  return tables.emplace_back(format.value, std::move(table)).second;
}

class Decoder {
 public:
  explicit Decoder(const Format& format) : format_(format), table_(&table_of(format)) {}
  double operator()(uint32_t bits) const {
    return format_.bits == 32 ? format_.value(bits) : (*table_)[bits & ((1u << format_.bits) - 1)];
  }

 private:
  Format format_;
  const std::vector<float>* table_;
};

constexpr int kMostK = 32;

/// c[m][n] += a[m][k] b[k][n] for `rows` rows.
struct Tile {
  double a[16][kMostK];
  double b[kMostK][256];
};

void multiply_row(const Tile& tile, int row, int k, int n, double* sums) {
  std::fill(sums, sums + n, 0.0);
  for (int i = 0; i < k; ++i) {
    const double a = tile.a[row][i];
    const double* const b = tile.b[i];
    for (int j = 0; j < n; ++j) sums[j] += a * b[j];
  }
}

/// The places of an A operand's elements: register r of a lane holds row row_of(lane, r), from column
/// column_of(lane, r) on, 32 / bits of them.
int a_row(int lane, int r) { return lane / 4 + (r & 1) * 8; }
int a_column(int lane, int r, int each) { return lane % 4 * each + (r >> 1) * 4 * each; }

void decode_a(Tile& tile, const Decoder& decode, int bits, int lane, const uint32_t* registers) {
  const int each = 32 / bits;
  for (int r = 0; r < 4; ++r) {
    for (int e = 0; e < each; ++e) {
      tile.a[a_row(lane, r)][a_column(lane, r, each) + e] =
          decode(registers[r] >> (bits * e));
    }
  }
}

// mma.sync.aligned.m16n8kK.row.col.f32.A.B.f32, and of integers.
void warp_product(Run& run, const Instruction& i) {
  struct Lane {
    uint32_t a[4], b[2], c[4], d[4];
  };
  const size_t formats = i.parts.size() - 4;
  const Format a = format_of(run, i.parts[formats + 1]);
  const Format b = format_of(run, i.parts[formats + 2]);
  const int k = 256 / a.bits;
  const std::string shape = "m16n8k" + std::to_string(k);
  if (!i.has(shape) || i.parts.back() != (a.integer ? "s32" : "f32")) run.fail("the shape of " + i.text + " is not emulated");
  Lane mine{};
  for (size_t r = 0; r < 4; ++r) {
    mine.a[r] = run.get32(i.arguments[1].parts[r]);
    mine.c[r] = run.get32(i.arguments[3].parts[r]);
  }
  for (size_t r = 0; r < 2; ++r) mine.b[r] = run.get32(i.arguments[2].parts[r]);
  machine().meet(0xffffffffu, &i, "mma.sync", &mine, [&](const std::array<void*, 32>& all) {
    static Tile tile;
    const Decoder decode_left(a);
    const Decoder decode_b(b);
    const int each = 32 / b.bits;
    for (int lane = 0; lane < 32; ++lane) {
      const auto* from = static_cast<const Lane*>(all[static_cast<size_t>(lane)]);
      decode_a(tile, decode_left, a.bits, lane, from->a);
      for (int r = 0; r < 2; ++r) {
        for (int e = 0; e < each; ++e) {
          tile.b[lane % 4 * each + r * 4 * each + e][lane / 4] = decode_b(from->b[r] >> (b.bits * e));
        }
      }
    }
    double sums[8];
    for (int row = 0; row < 16; ++row) {
      multiply_row(tile, row, k, 8, sums);
      for (int n = 0; n < 8; ++n) {
        auto* const to = static_cast<Lane*>(all[static_cast<size_t>(row % 8 * 4 + n / 2)]);
        const int r = row / 8 * 2 + n % 2;
        to->d[r] = a.integer ? to->c[r] + static_cast<uint32_t>(static_cast<int64_t>(sums[n]))
                             : std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<float>(to->c[r]) + sums[n]));
      }
    }
  });
  for (size_t r = 0; r < 4; ++r) run.set(i.arguments[0].parts[r], mine.d[r]);
}

int matrices_of(const Instruction& i) { return i.has("x4") ? 4 : i.has("x2") ? 2 : 1; }

// Lane l passes the address of row l % 8 of matrix l / 8, and gets columns 2 (l % 4) and the next of
// row l / 4 of each matrix; of the transposed matrix with .trans.
template <bool kStore>
void matrix_move(Run& run, const Instruction& i) {
  struct Lane {
    uint32_t address;
    uint32_t values[4];
  };
  const int count = matrices_of(i);
  const bool transposed = i.has("trans");
  const Argument& list = i.arguments[kStore ? 1 : 0];
  Lane mine{static_cast<uint32_t>(run.address(i.arguments[kStore ? 0 : 1])), {}};
  if (kStore) {
    for (int r = 0; r < count; ++r) mine.values[r] = run.get32(list.parts[static_cast<size_t>(r)]);
  }
  machine().meet(0xffffffffu, &i, kStore ? "stmatrix" : "ldmatrix", &mine, [&](const std::array<void*, 32>& all) {
    const auto lane_at = [&](int lane) { return static_cast<Lane*>(all[static_cast<size_t>(lane)]); };
    for (int matrix = 0; matrix < count; ++matrix) {
      char* rows[8];
      for (int row = 0; row < 8; ++row) rows[row] = machine().shared(lane_at(matrix * 8 + row)->address, 16, 16);
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t& value = lane_at(lane)->values[matrix];
        for (int e = 0; e < 2; ++e) {
          const int row = transposed ? lane % 4 * 2 + e : lane / 4;
          const int column = transposed ? lane / 4 : lane % 4 * 2 + e;
          uint16_t bits = static_cast<uint16_t>(value >> (16 * e));
          if (kStore) {
            std::memcpy(rows[row] + 2 * column, &bits, 2);
          } else {
            std::memcpy(&bits, rows[row] + 2 * column, 2);
            value = (value & ~(0xffffu << (16 * e))) | uint32_t{bits} << (16 * e);
          }
        }
      }
    }
  });
  if (!kStore) {
    for (int r = 0; r < count; ++r) run.set(list.parts[static_cast<size_t>(r)], mine.values[r]);
  }
}

/// A matrix in shared memory, as a descriptor of wgmma gives it.
class SharedMatrix {
 public:
  SharedMatrix(uint64_t descriptor, bool along_k, int bits)
      : start_(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading_(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride_(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        swizzle_(descriptor >> 62 == 0 ? 0 : 256 >> (descriptor >> 62)),
        along_k_(along_k),
        each_(128 / bits),
        bytes_(bits / 8) {
    Machine& m = machine();
    if ((descriptor >> 49 & 7) != 0) m.fail("wgmma: descriptors with a base offset are not emulated");
    if (!along_k && bits != 16) m.fail("wgmma: only 16-bit operands may lie along m or n");
    if ((descriptor & 0x3fff) == 0x3fff) m.fail("wgmma: a descriptor of poison");
  }

  /// The bits of element (row, k); rows are of A's m or B's n.
  uint32_t operator()(int row, int k) const {
    const int width = swizzle_ / 16;  // vectors of 16 bytes in a swizzled row
    uint32_t offset = 0;
    if (along_k_) {
      const auto vector = static_cast<uint32_t>(k / each_);
      const auto row8 = static_cast<uint32_t>(row % 8);
      offset = static_cast<uint32_t>(row / 8) * stride_ + static_cast<uint32_t>(k % each_ * bytes_);
      offset += swizzle_ == 0 ? row8 * 16 + vector * leading_ : row8 * static_cast<uint32_t>(swizzle_) + vector * 16;
    } else {
      const auto vector = static_cast<uint32_t>(row / each_);
      const auto k8 = static_cast<uint32_t>(k % 8);
      const auto block = static_cast<uint32_t>(k / 8);
      offset = static_cast<uint32_t>(row % each_ * bytes_);
      if (swizzle_ == 0) {
        offset += vector * stride_ + k8 * 16 + block * leading_;
      } else {
        const auto w = static_cast<uint32_t>(width);
        offset += vector % w * 16 + vector / w * leading_ + k8 * static_cast<uint32_t>(swizzle_) + block * stride_;
      }
    }
    const uint32_t address = swizzled_address(start_ + offset, swizzle_);
    uint32_t bits = 0;
    machine().check_fenced("wgmma reads", address, static_cast<size_t>(bytes_));
    std::memcpy(&bits, machine().shared(address, static_cast<size_t>(bytes_), 1), static_cast<size_t>(bytes_));
    return bits;
  }

 private:
  uint32_t start_, leading_, stride_;
  int swizzle_;
  bool along_k_;
  int each_, bytes_;
};

/// A wgmma that a warp has issued, with all that it will read.
struct IssuedProduct {
  struct Lane {
    std::array<void*, 128> sums;
    uint32_t a[4];
    void* a_places[4];
    uint64_t a_descriptor, b_descriptor;
    bool accumulate, negate_a, negate_b, a_along_k, b_along_k;
    int fibre;
  };
  std::array<Lane, 32> lanes;
  Format a, b;
  int n, k;
  bool from_registers;
  int row;  // of the warp's first in its warpgroup
  void run() const;
};

void IssuedProduct::run() const {
  static Tile tile;
  const Lane& first = lanes[0];
  const Decoder decode_left(a);
  const Decoder decode_right(b);
  Machine& m = machine();
  if (from_registers) {
    for (int lane = 0; lane < 32; ++lane) {
      const Lane& from = lanes[static_cast<size_t>(lane)];
      for (int r = 0; r < 4; ++r) {
        if (from.a_places[r] != nullptr && m.alive(from.fibre, from.a_places[r]) &&
            std::memcmp(from.a_places[r], &from.a[r], 4) != 0) {
          m.fail("registers of A were changed while a wgmma that reads them was in flight");
        }
      }
      decode_a(tile, decode_left, a.bits, lane, from.a);
    }
  } else {
    const SharedMatrix matrix(first.a_descriptor, first.a_along_k, a.bits);
    for (int row = 0; row < 16; ++row) {
      for (int i = 0; i < k; ++i) tile.a[row][i] = decode_left(matrix(this->row + row, i));
    }
  }
  const SharedMatrix matrix(first.b_descriptor, first.b_along_k, b.bits);
  for (int i = 0; i < k; ++i) {
    for (int j = 0; j < n; ++j) tile.b[i][j] = decode_right(matrix(j, i));
  }
  const double sign = first.negate_a != first.negate_b ? -1 : 1;
  double sums[256];
  for (int row = 0; row < 16; ++row) {
    multiply_row(tile, row, k, n, sums);
    for (int j = 0; j < n; ++j) {
      const Lane& to = lanes[static_cast<size_t>(row % 8 * 4 + j % 8 / 2)];
      void* const at = to.sums[static_cast<size_t>(j / 8 * 4 + row / 8 * 2 + j % 2)];
      if (a.integer) {
        int32_t c = 0;
        if (first.accumulate) std::memcpy(&c, at, 4);
        c = static_cast<int32_t>(static_cast<uint32_t>(c) + static_cast<uint32_t>(static_cast<int64_t>(sums[j])));
        std::memcpy(at, &c, 4);
      } else {
        float c = 0;
        if (first.accumulate) std::memcpy(&c, at, 4);
        c = static_cast<float>(c + sign * sums[j]);
        std::memcpy(at, &c, 4);
      }
    }
  }
}

int number_after(const std::string& text, char letter) {
  return std::atoi(text.c_str() + text.find(letter) + 1);
}

// wgmma.mma_async.sync.aligned.m64nNkK.f32.A.B d, a, b, p, scale-a, scale-b, trans-a, trans-b.
void group_product(Run& run, const Instruction& i) {
  Machine& m = machine();
  Warp& warp = m.warp();
  const std::string& shape = i.parts[4];
  const int n = number_after(shape, 'n');
  const Format a = format_of(run, i.parts[6]);
  const Format b = format_of(run, i.parts[7]);
  const int k = 256 / a.bits;
  if (number_after(shape, 'k') != k || n % 8 != 0 || n > 256) run.fail("the shape of " + i.text);
  if (i.parts[5] != (a.integer ? "s32" : "f32")) run.fail("wgmma with sums of " + i.parts[5] + " is not emulated");
  if (!warp.fenced) run.fail("wgmma without wgmma.fence before it");
  if (m.threads() % 128 != 0 && m.self().warp() / 4 == m.threads() / 128) run.fail("wgmma by an incomplete warpgroup");
  IssuedProduct::Lane mine{};
  const auto& d = i.arguments[0].parts;
  if (d.size() != static_cast<size_t>(n / 2)) run.fail("wgmma with " + std::to_string(d.size()) + " sums");
  for (size_t r = 0; r < d.size(); ++r) mine.sums[r] = run.operand(d[r]).place;
  const bool from_registers = i.arguments[1].kind == Argument::Kind::kList;
  if (from_registers) {
    for (size_t r = 0; r < 4; ++r) {
      const Operand& operand = run.operand(i.arguments[1].parts[r]);
      mine.a[r] = static_cast<uint32_t>(operand.value);
      mine.a_places[r] = operand.place;
    }
  } else {
    mine.a_descriptor = run.get(i.arguments[1]);
  }
  mine.b_descriptor = run.get(i.arguments[2]);
  mine.accumulate = run.get(i.arguments[3]) != 0;
  const auto flag = [&](size_t at) { return at < i.arguments.size() ? static_cast<int32_t>(run.get32(i.arguments[at])) : 0; };
  mine.negate_a = !a.integer && flag(4) < 0;
  mine.negate_b = !a.integer && flag(5) < 0;
  mine.a_along_k = from_registers || flag(6) == 0;
  mine.b_along_k = flag(from_registers ? 6 : 7) == 0;
  mine.fibre = m.self().index;
  m.meet(0xffffffffu, &i, "wgmma.mma_async", &mine, [&](const std::array<void*, 32>& all) {
    auto product = std::make_shared<IssuedProduct>();
    for (size_t lane = 0; lane < 32; ++lane) {
      product->lanes[lane] = *static_cast<const IssuedProduct::Lane*>(all[lane]);
      const auto& one = product->lanes[lane];
      const auto& first = product->lanes[0];
      if (one.a_descriptor != first.a_descriptor || one.b_descriptor != first.b_descriptor || one.accumulate != first.accumulate) {
        m.fail("lanes of a warp give a wgmma different descriptors");
      }
    }
    product->a = a;
    product->b = b;
    product->n = n;
    product->k = k;
    product->from_registers = from_registers;
    product->row = m.self().warp() % 4 * 16;
    ++warp.issued;
    // At once only if all that are before it are done: they may have the same sums.
    if (warp.open_products.empty() && warp.products.empty() && m.at_once()) return product->run();
    warp.open_products.push_back([product] { product->run(); });
  });
}

void group_control(Run& run, const Instruction& i) {
  Machine& m = machine();
  const bool fence = i.has("fence");
  const bool commits = i.has("commit_group");
  const auto left = fence || commits ? size_t{0} : static_cast<size_t>(run.get(i.arguments[0]));
  m.meet(0xffffffffu, &i, i.text.c_str(), nullptr, [&](const auto&) {
    Warp& warp = m.warp();
    if (fence) {
      warp.fenced = true;
    } else if (commits) {
      warp.products.push_back(std::move(warp.open_products));
      warp.open_products.clear();
    } else {
      while (warp.products.size() > left) {
        const auto group = std::move(warp.products.front());
        warp.products.pop_front();
        for (const auto& product : group) product();
      }
    }
  });
}

void transpose(Run& run, const Instruction& i) {
  struct Lane {
    uint32_t from, to;
  };
  Lane mine{run.get32(i.arguments[1]), 0};
  machine().meet(0xffffffffu, &i, "movmatrix", &mine, [](const std::array<void*, 32>& all) {
    for (int lane = 0; lane < 32; ++lane) {
      auto* const to = static_cast<Lane*>(all[static_cast<size_t>(lane)]);
      for (int e = 0; e < 2; ++e) {
        const int row = lane % 4 * 2 + e;
        const int column = lane / 4;
        const auto* const from = static_cast<const Lane*>(all[static_cast<size_t>(row * 4 + column / 2)]);
        to->to |= (from->from >> (16 * (column % 2)) & 0xffffu) << (16 * e);
      }
    }
  });
  run.set(i.arguments[0], mine.to);
}

}  // namespace

Action product_action(const Instruction& i) {
  const std::string& name = i.parts[0];
  if (name == "mma") return warp_product;
  if (name == "ldmatrix") return matrix_move<false>;
  if (name == "stmatrix") return matrix_move<true>;
  if (name == "movmatrix") return transpose;
  if (name == "wgmma") return i.has("mma_async") ? group_product : group_control;
  return nullptr;
}

}  // namespace emulated
