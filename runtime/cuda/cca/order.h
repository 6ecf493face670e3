// The order of columns and rows in the second convolution of compressed convolutional attention by
// tensor cores. Products take their columns under other names, so that a lane reads and writes
// vectors of 16 bytes: in every 32 columns (a panel) it has the eight that begin at 8 (lane % 4),
// on the side of the inputs as on that of the outputs. Both kernels, by mma.sync
// (cca/tile.cuh) and by wgmma (cca/sm90_kernel.cuh), sum the same sixteen inputs in each
// step, in the same places, and so give the same bits.
#pragma once

#include <cstdint>

namespace packhorse::cuda {

/// Columns of a head that are named anew together.
inline constexpr int kPanelColumns = 32;

/// The place among the columns of a product at which column `column` of a head comes out: a lane
/// has the places 8 j + 2 (lane % 4) and the next of every eight.
constexpr int output_place(int column) {
  const int in_panel = column % kPanelColumns;
  return column - in_panel + in_panel % 8 / 2 * 8 + in_panel / 8 * 2 + in_panel % 2;
}

/// The place among the inputs, of all steps of 16 in the order in which they are summed, of column
/// `column` of a head at a tap (0: the token before). Of each panel come both taps, and of each tap
/// the first four columns of each lane, then the other four.
constexpr int input_place(int tap, int column) {
  const int panel = column / kPanelColumns;
  const int lane = column % kPanelColumns / 8;
  const int in_lane = column % 8;
  const int step = (panel * 2 + tap) * 2 + in_lane / 4;
  return step * 16 + in_lane % 4 / 2 * 8 + lane * 2 + in_lane % 2;
}

/// The first of the two neighbouring rows that a lane has of its warp's 16 in a product by wgmma.
/// They are the product's rows lane / 4 and lane / 4 + 8. Lanes that read shared memory together
/// have rows that are four apart, which lie in different banks where rows of 128 bytes are
/// swizzled.
constexpr int first_row_of_lane(int lane) {
  return lane / 16 * 8 + lane / 4 % 2 * 4 + lane / 8 % 2 * 2;
}

/// The byte at which eight columns, the first of them `column`, of a row begin in a box that TMA
/// has written: 64 columns wide, 128 bytes for each row, and swizzled over them.
constexpr uint32_t swizzled_vector(int row, int column) {
  return static_cast<uint32_t>(row * 128 + ((column / 8) ^ (row % 8)) * 16);
}

}  // namespace packhorse::cuda
