// A producer warp of the Hopper kernel of compressed convolutional attention
// (cca/sm90_kernel.cuh), which works for one consumer. It copies the consumer's tiles to
// shared memory by TMA, and finds the rows that have other tokens before them than the rows before
// them, because sequences begin there. While the copies are on their way, it shifts values: of
// every so many rows, the blocks of each head those of one.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/cca/latent_rows.cuh"
#include "cuda/cca/sm90_traits.cuh"
#include "cuda/common/reduce.cuh"

namespace packhorse::cuda {

/// The state of one lane of a producer warp.
template <class Traits>
struct CcaProducer {
  using T = typename Traits::Element;

  const CcaArgsSm90& all;
  typename Traits::Exchange& exchange;
  T* const stages;
  const int head;
  const int group;
  const int tokens;
  const int sequences;
  const CcaArgs& args = all.args;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  static constexpr int kRowsOfLane = Traits::kTileRows / 32;

  /// The delayed values of this lane's rows of a tile, rows `lane` and lane + 32, or null where
  /// they are the first of their sequences.
  using Delayed = const T* [kRowsOfLane];

  /// Copies the rows of `map` from `row` on of one head to a stage whose boxes are `pitch` rows
  /// apart.
  __device__ void copy(const CUtensorMap& map, int stage, int pitch, int of_head, int row) const {
    for (int box = 0; box < Traits::kBoxes; ++box) {
      cute::SM90_TMA_LOAD_2D::copy(
          &map, &exchange.full[stage],
          static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
          stages + stage * Traits::kStageElements + box * pitch * Traits::kBoxColumns,
          of_head * Traits::kHeadDim + box * Traits::kBoxColumns, row);
    }
  }

  /// Writes what Borders says of the tile of rows from `first` on, and finds the delayed values.
  __device__ void find_borders(int first, typename Traits::Borders& borders,
                               Delayed& delayed) const {
    const int32_t* const begins = args.batch.cu_seqlens;
    const int sequence = warp_search(sequences, first, [&](int i) { return begins[i]; });
    const bool plain = first - begins[sequence] >= Traits::kRowsBefore &&
                       first + Traits::kTileRows <= begins[sequence + 1];
    if (lane == 0) borders.plain = plain ? 1 : 0;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = lane + 32 * i;
      const int token = first + row;
      if (plain) {
        delayed[i] = latents_of<T>(args, token - 1) + args.mixed_columns() + args.delayed_column;
        continue;
      }
      delayed[i] = nullptr;
      uint32_t in_tile = (1u << Traits::kRowsBefore) - 1;
      if (token < tokens) {
        const LatentPlace place(args, sequences, token);
        delayed[i] = delayed_values<T>(args, token, place);
#pragma unroll
        for (int back = 0; back < Traits::kRowsBefore; ++back) {
          if (token - back - 1 >= place.begin) continue;
          in_tile &= ~(1u << back);
          const int position = place.position - back - 1;
          borders.older[row][back] =
              position < 0 || args.pages.rows.rank == 0
                  ? -1
                  : static_cast<int32_t>(state_row(args.pages, place.sequence, position));
        }
      }
      borders.in_tile[row] = static_cast<uint8_t>(in_tile);
    }
  }

  /// Eight values of a row that lie `column` columns from the beginning of the values.
  __device__ uint4 load_values(int token, const T* delayed, int column) const {
    const int own = args.delayed_column;
    const T* from = column < own ? latents_of<T>(args, token) + args.mixed_columns() + column
                    : delayed == nullptr ? nullptr
                                         : delayed + (column - own);
    if (from != nullptr) return *reinterpret_cast<const uint4*>(from);
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (args.first_values != nullptr) {
      auto* pairs = reinterpret_cast<typename Element<T>::Pair*>(&bits);
#pragma unroll
      for (int p = 0; p < kVectorSize / 2; ++p) {
        pairs[p] = Element<T>::pair(args.first_values[column + 2 * p],
                                    args.first_values[column + 2 * p + 1]);
      }
    }
    return bits;
  }

  /// Shifts the values of every `step`-th row of a tile from row `begin` on, a few at a time.
  __device__ void shift(int first, int begin, int step, const Delayed& delayed) const {
    constexpr int kAtOnce = 4;
    const auto columns = static_cast<int>(args.value_columns());
    const int rows = min(Traits::kTileRows, tokens - first);
#pragma unroll 1
    for (int r = begin; r < rows; r += kAtOnce * step) {
#pragma unroll 1
      for (int block = 0; block < columns; block += 32 * kVectorSize) {
        const int column = block + lane * kVectorSize;
        uint4 bits[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int row = r + i * step;
          const auto address = reinterpret_cast<unsigned long long>(
              row % Traits::kTileRows < 32 ? delayed[0] : delayed[1]);
          const auto from = reinterpret_cast<const T*>(__shfl_sync(kFullWarp, address, row % 32));
          if (row < rows && column < columns) bits[i] = load_values(first + row, from, column);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int row = r + i * step;
          if (row >= rows || column >= columns) continue;
          T* const out = row_of<T>(args.out, first + row) + args.mixed_columns();
          *reinterpret_cast<uint4*>(out + column) = bits[i];
        }
      }
    }
  }

  /// Goes through the tiles of its consumer.
  __device__ void run(const BlockShare& share) const {
    const OtherHeads others(args, head);
    const int heads = args.num_heads + args.num_kv_heads;
    CcaRing own = own_ring<Traits>(args, head);
    CcaRing other = other_ring<Traits>(args, head);
    for (CcaTiles<Traits> tiles(share, group, tokens); tiles; tiles.advance()) {
      const int first = tiles.first;
      uint64_t* const full = &exchange.full[own.stage()];
      // All lanes wait, because all may write the borders.
      sm90::Barrier::wait(&exchange.empty[own.stage()], own.phase ^ 1);
      if (lane == 0) {
        sm90::TxBarrier::arrive_and_expect_tx(full, Traits::kOwnBytes);
        copy(all.tile_and_before, own.stage(), Traits::kBoxPitch, head,
             first - Traits::kRowsBefore);
      }
      Delayed delayed;
      find_borders(first, exchange.borders[own.stage()], delayed);
      __syncwarp();
      if (lane == 0) {
        // The tile's second arrival. It comes ahead of the other heads, which may be more than
        // their stages: the consumer makes room for them when it has begun.
        sm90::Barrier::arrive(full);
#pragma unroll 1
        for (int o = 0; o < others.count; ++o) {
          uint64_t* const other_full = &exchange.full[other.stage()];
          sm90::Barrier::wait(&exchange.empty[other.stage()], other.phase ^ 1);
          sm90::TxBarrier::arrive_and_expect_tx(other_full, Traits::kOtherBytes);
          copy(all.tile, other.stage(), Traits::kTileRows, others.first + o, first);
          other.advance();
        }
      }
      __syncwarp();
      own.advance();
      shift(first, (head - first % heads + heads) % heads, heads, delayed);
    }
  }
};

}  // namespace packhorse::cuda
