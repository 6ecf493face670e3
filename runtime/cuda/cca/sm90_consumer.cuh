// A consumer warpgroup of the Hopper kernel of compressed convolutional attention
// (cca/sm90_kernel.cuh). It has tiles of 64 rows of one head. Of each it computes the first
// convolution in registers, as the A operand of wgmma, multiplies it with the head's weights in
// shared memory, and finishes and stores the head from the registers of the sums.
#pragma once

#include "cuda/cca/latent_rows.cuh"
#include "cuda/cca/sm90_traits.cuh"
#include "cuda/cca/steps.cuh"
#include "cuda/common/mma_sm80.cuh"

namespace packhorse::cuda {

/// The state of one thread of a consumer warpgroup.
template <class Traits>
struct CcaConsumer {
  using T = typename Traits::Element;
  using Storage = typename Traits::SharedStorage;
  static constexpr int D = Traits::kHeadDim;
  static constexpr int kPanels = Traits::kPanels;
  static constexpr int kSteps = 4;  // steps of 16 inputs in a panel: two for each tap

  const CcaArgs& args;
  Storage& smem;
  const int head;
  const int tokens;
  const int group = sm90::uniform(static_cast<int>(threadIdx.x) / 128);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The first of this lane's two rows of a tile, and of its eight columns of a panel.
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + first_row_of_lane(lane);
  const int column = lane % 4 * kVectorSize;
  CcaRing own = own_ring<Traits>(args, head);
  CcaRing other = other_ring<Traits>(args, head);

  __device__ typename Traits::Exchange& exchange() const { return smem.exchange[group]; }

  /// Returns one of the sums: row i of this lane's two, column c of its eight of a panel.
  template <class Sums>
  __device__ static float& at(Sums& sums, int i, int panel, int c) {
    return sums(4 * (4 * panel + c / 2) + 2 * i + c % 2);
  }

  /// Returns this lane's columns of a panel, in row `row_in_box` of a stage whose boxes are kPitch
  /// rows apart.
  template <int kPitch>
  __device__ uint4 load(int stage, int row_in_box, int panel) const {
    constexpr int kPanelsOfBox = Traits::kBoxColumns / kPanelColumns;
    const T* const box = smem.stages[group] + stage * Traits::kStageElements +
                         panel / kPanelsOfBox * (kPitch * Traits::kBoxColumns);
    const int in_box = panel % kPanelsOfBox * kPanelColumns + column;
    return *reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(box) +
                                           swizzled_vector(row_in_box, in_box));
  }
  __device__ uint4 load_own(int row_in_box, int panel) const {
    return load<Traits::kBoxPitch>(own.stage(), row_in_box, panel);
  }

  /// Waits until the current stage of a ring is filled.
  __device__ void wait(const CcaRing& ring) const {
    sm90::Barrier::wait(&exchange().full[ring.stage()], ring.phase);
  }
  /// Tells the producer that this warp is done with the current stage of a ring.
  __device__ void release(const CcaRing& ring) const {
    __syncwarp();
    if (lane == 0) sm90::Barrier::arrive(&exchange().empty[ring.stage()]);
  }

  /// Begins the sums with the bias and the mean of latents: half of the head itself, and half of
  /// the head of keys that it sees or of the mean of the heads that see it.
  template <class Sums>
  __device__ void begin(Sums& sums, const OtherHeads& others) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      float bias[kVectorSize];
      load_vector(bias, smem.grouped_bias + p * kPanelColumns + column);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float values[kVectorSize];
        unpack<T>(values, load_own(row + Traits::kRowsBefore + i, p));
#pragma unroll
        for (int c = 0; c < kVectorSize; ++c) {
          at(sums, i, p, c) = __fmaf_rn(0.5f, values[c], bias[c]);
        }
      }
    }
    const float share = 0.5f / static_cast<float>(others.count);
#pragma unroll 1
    for (int o = 0; o < others.count; ++o) {
      wait(other);
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float values[kVectorSize];
          unpack<T>(values, load<Traits::kTileRows>(other.stage(), row + i, p));
#pragma unroll
          for (int c = 0; c < kVectorSize; ++c) {
            at(sums, i, p, c) = __fmaf_rn(share, values[c], at(sums, i, p, c));
          }
        }
      }
      release(other);
      other.advance();
    }
  }

  /// Returns the latents of the token `back` + 1 tokens before row i of this lane; `x` are those
  /// that the tile has there. `in_tile`: Borders::in_tile of both rows.
  __device__ uint4 older(uint32_t in_tile, int i, int back, int panel, const uint4& x) const {
    if (in_tile >> (8 * i + back) & 1) return x;
    const int32_t from = exchange().borders[own.stage()].older[row + i][back];
    if (from < 0) return make_uint4(0, 0, 0, 0);
    const T* const state = row_of<T>(args.pages.rows, from) + head * D;
    return *reinterpret_cast<const uint4*>(state + panel * kPanelColumns + column);
  }

  /// Computes the first convolution of a panel, as the registers of the A operands of its steps:
  /// words[4 step + r], where an operand's registers are the two rows of its first eight inputs,
  /// then those of the other eight.
  template <bool kPlain>
  __device__ void make_taps(uint32_t* words, uint32_t in_tile, int panel) const {
    uint4 x[Traits::kRowsBefore + 2];
#pragma unroll
    for (int i = 0; i < Traits::kRowsBefore + 2; ++i) {
      x[i] = load_own(row + i, panel);
    }
    // The token two before, the one before, and the token itself, for both rows.
    uint4 rows[2][3] = {{x[0], x[1], x[2]}, {x[1], x[2], x[3]}};
    if constexpr (!kPlain) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rows[i][0] = older(in_tile, i, 1, panel, rows[i][0]);
        rows[i][1] = older(in_tile, i, 0, panel, rows[i][1]);
      }
    }
    const auto half_of = [](const uint4& bits, int half) {
      return half == 0 ? uint2{bits.x, bits.y} : uint2{bits.z, bits.w};
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto at_half = [&](const float* from) {
        return reinterpret_cast<const float4*>(from + panel * kPanelColumns + column)[half];
      };
      const float4 weights[3] = {at_half(smem.depthwise[0]), at_half(smem.depthwise[1]),
                                 at_half(smem.depthwise_bias)};
      uint2 taps[2][2];  // [tap][row]
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // The token before the next row is this row's token, unless a sequence begins between.
        taps[0][i] = kPlain && i == 1 ? taps[1][0]
                                      : depthwise<T>(half_of(rows[i][0], half),
                                                     half_of(rows[i][1], half), weights);
        taps[1][i] = depthwise<T>(half_of(rows[i][1], half), half_of(rows[i][2], half), weights);
      }
#pragma unroll
      for (int tap = 0; tap < 2; ++tap) {
        uint32_t* const operand = words + 4 * (2 * tap + half);
        operand[0] = taps[tap][0].x;
        operand[1] = taps[tap][1].x;
        operand[2] = taps[tap][0].y;
        operand[3] = taps[tap][1].y;
      }
    }
  }

  /// Adds the second convolution. The operands of a panel are made while the panel before is
  /// multiplied.
  template <bool kPlain, class Sums>
  __device__ void convolve(Sums& sums) {
    using namespace cute;
    typename Traits::Mma mma;
    mma.accumulate_ = SM90::GMMA::ScaleOut::One;
    const auto slice = mma.get_slice(static_cast<int>(threadIdx.x) % 128);
    const Tensor weights =
        make_tensor(make_smem_ptr(smem.weights), typename Traits::LayoutWeights{});
    const Tensor b = slice.partition_fragment_B(weights);
    Tensor taps =
        make_tensor<typename Traits::CuteElement>(Shape<Shape<_2, _2, _2>, _1, Int<2 * kSteps>>{});
    Tensor words = recast<uint32_t>(taps);
    const auto fence_words = [&](int first) {
      CUTE_UNROLL
      for (int i = 0; i < 4 * kSteps; ++i) warpgroup_fence_operand(words(first + i));
    };
    uint32_t in_tile = 0;
    if constexpr (!kPlain) {
      in_tile = *reinterpret_cast<const uint16_t*>(&exchange().borders[own.stage()].in_tile[row]);
    }
    warpgroup_fence_operand(sums);
    CUTE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const int first = p % 2 * 4 * kSteps;
      if (p >= 2) {
        warpgroup_wait<1>();  // the products two panels before have read their operands
        fence_words(first);
      }
      make_taps<kPlain>(&words(first), in_tile, p);
      if (p == kPanels - 1) release(own);
      fence_words(first);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int i = 0; i < kSteps; ++i) {
        cute::gemm(mma, taps(_, _, p % 2 * kSteps + i), b(_, _, p * kSteps + i), sums);
      }
      warpgroup_commit_batch();
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(sums);
  }

  /// Brings heads to their length, rotates and stores them.
  template <class Sums>
  __device__ void finish(Sums& sums, int first, const float (&positions)[2]) const {
    const float length = length_of_head(args, head);
    const int dims = args.rotation.data != nullptr ? args.dims : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Squares are summed over 32 columns first, then over these sums, as in cca/tile.cuh.
      float total = 0;
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        float squares = 0;
#pragma unroll
        for (int c = 0; c < kVectorSize; ++c) {
          squares = __fmaf_rn(at(sums, i, p, c), at(sums, i, p, c), squares);
        }
        squares = quad_sum(squares);
        total = p == 0 ? squares : __fadd_rn(total, squares);
      }
      const float factor = factor_to_length(length, total);
      const int token = first + row + i;
      T* const out = row_of<T>(args.out, token) + head * D;
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        float values[kVectorSize];
#pragma unroll
        for (int c = 0; c < kVectorSize; ++c) values[c] = __fmul_rn(at(sums, i, p, c), factor);
        const int first_column = p * kPanelColumns + column;
        rotate_vector(values, first_column, dims, positions[i], smem.frequencies);
        if (token < tokens) store_vector(out + first_column, values);
      }
    }
  }

  /// Goes through every kConsumers-th tile of the block's part, from that of the warpgroup's own
  /// number on.
  __device__ void run(const BlockShare& share) {
    using namespace cute;
    const OtherHeads others(args, head);
    for (CcaTiles<Traits> tiles(share, group, tokens); tiles; tiles.advance()) {
      float positions[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = tiles.first + row + i;
        positions[i] = args.rotation.data != nullptr && token < tokens
                           ? *row_of<const float>(args.rotation, token)
                           : 0.0f;
      }
      Tensor sums = make_tensor<float>(Shape<Shape<_2, _2, Int<D / 8>>, _1, _1>{});
      wait(own);
      begin(sums, others);
      if (sm90::uniform(exchange().borders[own.stage()].plain) != 0) {
        convolve<true>(sums);
      } else {
        convolve<false>(sums);
      }
      finish(sums, tiles.first, positions);
      own.advance();
    }
  }
};

}  // namespace packhorse::cuda
