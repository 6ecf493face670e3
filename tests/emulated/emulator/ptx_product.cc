// Tensor cores: mma.sync, wgmma, and the instructions that load and store their matrices.
#include <array>
#include <bit>
#include <cstring>

#include "emulator/actions.h"
#include "emulator/machine.h"
#include "emulator/products.h"

namespace emulated {
namespace {

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
  if (!i.has(shape) || i.parts.back() != (a.integer ? "s32" : "f32"))
    run.fail("the shape of " + i.text + " is not emulated");
  Lane mine{};
  for (size_t r = 0; r < 4; ++r) {
    mine.a[r] = run.get32(i.arguments[1].parts[r]);
    mine.c[r] = run.get32(i.arguments[3].parts[r]);
  }
  for (size_t r = 0; r < 2; ++r) mine.b[r] = run.get32(i.arguments[2].parts[r]);
  machine().meet(0xffffffffu, &i, "mma.sync", &mine, [&](const std::array<void*, 32>& all) {
    static ProductTile tile;
    const Decoder decode_left(a);
    const Decoder decode_b(b);
    const int each = 32 / b.bits;
    for (int lane = 0; lane < 32; ++lane) {
      const auto* from = static_cast<const Lane*>(all[static_cast<size_t>(lane)]);
      decode_a(tile, decode_left, a.bits, lane, from->a);
      for (int r = 0; r < 2; ++r) {
        for (int e = 0; e < each; ++e) {
          tile.b[lane % 4 * each + r * 4 * each + e][lane / 4] =
              decode_b(from->b[r] >> (b.bits * e));
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
                             : std::bit_cast<uint32_t>(
                                   static_cast<float>(std::bit_cast<float>(to->c[r]) + sums[n]));
      }
    }
  });
  for (size_t r = 0; r < 4; ++r) run.set(i.arguments[0].parts[r], mine.d[r]);
}

int matrices_of(const Instruction& i) { return i.has("x4") ? 4 : i.has("x2") ? 2 : 1; }

// Lane l passes the address of row l % 8 of matrix l / 8, and gets columns 2 (l % 4) and the next
// of row l / 4 of each matrix; of the transposed matrix with .trans.
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
  machine().meet(0xffffffffu, &i, kStore ? "stmatrix" : "ldmatrix", &mine,
                 [&](const std::array<void*, 32>& all) {
                   const auto lane_at = [&](int lane) {
                     return static_cast<Lane*>(all[static_cast<size_t>(lane)]);
                   };
                   for (int matrix = 0; matrix < count; ++matrix) {
                     char* rows[8];
                     for (int row = 0; row < 8; ++row)
                       rows[row] = machine().shared(lane_at(matrix * 8 + row)->address, 16, 16);
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
        const auto* const from =
            static_cast<const Lane*>(all[static_cast<size_t>(row * 4 + column / 2)]);
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
  if (name == "wgmma") return group_action(i);
  return nullptr;
}

}  // namespace emulated
