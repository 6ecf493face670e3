// wgmma: products of a warpgroup. Each warp multiplies its own 16 of 64 rows, when it waits for
// them or before, and reads shared memory at that time.
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "emulator/actions.h"
#include "emulator/machine.h"
#include "emulator/products.h"
#include "emulator/tensor_copy.h"

namespace emulated {
namespace {

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
    if ((descriptor >> 49 & 7) != 0)
      m.fail("wgmma: descriptors with a base offset are not emulated");
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
      offset += swizzle_ == 0 ? row8 * 16 + vector * leading_
                              : row8 * static_cast<uint32_t>(swizzle_) + vector * 16;
    } else {
      const auto vector = static_cast<uint32_t>(row / each_);
      const auto k8 = static_cast<uint32_t>(k % 8);
      const auto block = static_cast<uint32_t>(k / 8);
      offset = static_cast<uint32_t>(row % each_ * bytes_);
      if (swizzle_ == 0) {
        offset += vector * stride_ + k8 * 16 + block * leading_;
      } else {
        const auto w = static_cast<uint32_t>(width);
        offset += vector % w * 16 + vector / w * leading_ + k8 * static_cast<uint32_t>(swizzle_) +
                  block * stride_;
      }
    }
    const uint32_t address = swizzled_address(start_ + offset, swizzle_);
    uint32_t bits = 0;
    machine().check_fenced("wgmma reads", address, static_cast<size_t>(bytes_));
    std::memcpy(&bits, machine().shared(address, static_cast<size_t>(bytes_), 1),
                static_cast<size_t>(bytes_));
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
  int row;  // first row of the warp in its warpgroup's product
  void run() const;
};

void IssuedProduct::run() const {
  static ProductTile tile;
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
        c = static_cast<int32_t>(static_cast<uint32_t>(c) +
                                 static_cast<uint32_t>(static_cast<int64_t>(sums[j])));
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
  if (i.parts[5] != (a.integer ? "s32" : "f32"))
    run.fail("wgmma with sums of " + i.parts[5] + " is not emulated");
  if (!warp.fenced) run.fail("wgmma without wgmma.fence before it");
  if (m.threads() % 128 != 0 && m.self().warp() / 4 == m.threads() / 128)
    run.fail("wgmma by an incomplete warpgroup");
  IssuedProduct::Lane mine{};
  const auto& d = i.arguments[0].parts;
  if (d.size() != static_cast<size_t>(n / 2))
    run.fail("wgmma with " + std::to_string(d.size()) + " sums");
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
  const auto flag = [&](size_t at) {
    return at < i.arguments.size() ? static_cast<int32_t>(run.get32(i.arguments[at])) : 0;
  };
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
      if (one.a_descriptor != first.a_descriptor || one.b_descriptor != first.b_descriptor ||
          one.accumulate != first.accumulate) {
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
    // Runs at once only if all products before it are done: they may have the same sums.
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

}  // namespace

Action group_action(const Instruction& i) {
  return i.has("mma_async") ? group_product : group_control;
}

}  // namespace emulated
