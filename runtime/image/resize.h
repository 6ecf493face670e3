// Resizes images of 8 bits a channel, with the bits of Pillow or of torchvision (axis.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "image/axis.h"

namespace packhorse::image {

struct Size {
  int64_t height = 0, width = 0;
  bool operator==(const Size&) const = default;
};

/// An image whose rows lie anywhere. Pixels have `pixel_stride` bytes, of which the first
/// `channels` (1 to 4) count.
struct Pixels {
  std::vector<const uint8_t*> rows;  // [height]
  int64_t width = 0;
  int channels = 0;
  int pixel_stride = 0;  // channels, or 4 for 3 channels

  Size size() const { return {static_cast<int64_t>(rows.size()), width}; }
};

/// The most pixels of a side, of images and of what they become.
inline constexpr int64_t kMostOfSide = 1 << 20;

/// A part of an image to be resized: the pixels of `rows` and `columns` of what the whole image
/// would become at `size`.
struct Window {
  Size size;
  Span rows, columns;
};

/// Makes parts of a resized image. Parts may be made side by side, by any threads.
class Resizer {
 public:
  /// Throws InvalidArgument for an image, a window or a filter that is not acceptable. `pixels`
  /// must live as long as this.
  Resizer(const Pixels& pixels, const Window& window, Filter filter, Rule rule);

  /// Number of rows of the window that are best made at once, which share what they are made of.
  int64_t band() const { return band_; }

  /// Bytes that begin at a line of the cache, which loads of whole vectors then do not straddle.
  class Lines {
   public:
    uint8_t* take(int64_t bytes) {
      constexpr size_t kLine = 64;
      if (memory_.size() < static_cast<size_t>(bytes) + kLine) {
        memory_.resize(static_cast<size_t>(bytes) + kLine);
      }
      return memory_.data() + (kLine - reinterpret_cast<uintptr_t>(memory_.data()) % kLine);
    }

   private:
    std::vector<uint8_t> memory_;
  };

  /// A worker's memory, which grows to what the largest image needs.
  struct Scratch {
    Lines packed, fours, row, rows_made, fours_made;
    std::vector<const uint8_t*> rows;
  };

  /// Calls take(row, bytes) for the rows of the window in [rows.begin, rows.end), counted from the
  /// window's first; bytes are [columns][channels], until the next row.
  template <class Take>
  void make(Span rows, Scratch& scratch, Take&& take) const {
    make(rows, scratch,
         {[](void* context, int64_t row, const uint8_t* bytes) {
            (*static_cast<std::remove_reference_t<Take>*>(context))(row, bytes);
          },
          &take});
  }

 private:
  struct Taker {
    void (*call)(void* context, int64_t row, const uint8_t* bytes);
    void* context;
  };
  void make(Span rows, Scratch& scratch, Taker take) const;
  void copy(Span rows, Scratch& scratch, Taker take) const;
  void resample(Span rows, Scratch& scratch, Taker take) const;
  void resample_vertically_first(Span rows, Scratch& scratch, Taker take) const;

  // Source rows that output rows are made of, from a multiple of 4 on.
  Span sources_of(Span rows) const;
  const uint8_t* source_row(int64_t row) const;
  cpu::Taps taps_of(int64_t row) const { return rows_.taps[static_cast<size_t>(row)]; }

  // The horizontal pass of the rows that `scratch.rows` names.
  void resample_columns(Scratch& scratch, uint8_t* out, int64_t out_stride, int pixel_stride) const;
  void resample_row(int64_t row, const uint8_t* fours, int64_t first_row, int64_t columns,
                    uint8_t* out) const;

  const Pixels& pixels_;
  const Window window_;
  const cpu::ImageKernels& kernels_;
  const bool vertical_first_;
  int64_t band_ = 0;
  // Either the pixels to copy, or weights.
  std::vector<int64_t> source_rows_, source_columns_;
  Axis rows_, columns_;
};

}  // namespace packhorse::image
