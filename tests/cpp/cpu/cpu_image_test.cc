// Tests resizing of images against sums in 64 bits, pixel by pixel.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cpu_test.h"
#include "image/features.h"
#include "packhorse/error.h"

namespace packhorse::image {
namespace {

struct Image {
  Size size;
  int channels;
  std::vector<uint8_t> bytes;  // [height][width][channels]

  uint8_t at(int64_t y, int64_t x, int c) const {
    return bytes[static_cast<size_t>((y * size.width + x) * channels + c)];
  }
  Image transposed() const {
    Image other{{size.width, size.height}, channels, {}};
    for (int64_t x = 0; x < size.width; ++x) {
      for (int64_t y = 0; y < size.height; ++y) {
        for (int c = 0; c < channels; ++c) other.bytes.push_back(at(y, x, c));
      }
    }
    return other;
  }
};

Image random_image(Size size, int channels, std::mt19937& random) {
  Image image{size, channels, {}};
  const bool ends = random() % 3 == 0;
  for (int64_t i = 0; i < size.height * size.width * channels; ++i) {
    image.bytes.push_back(static_cast<uint8_t>(ends ? random() % 2 * 255 : random()));
  }
  return image;
}

// Bicubic weights of an axis, [out][in].
std::vector<std::vector<double>> weights_of(int64_t in, int64_t out) {
  const double scale = double(in) / double(out), stretch = std::max(scale, 1.0);
  std::vector<std::vector<double>> all;
  for (int64_t o = 0; o < out; ++o) {
    const double center = (double(o) + 0.5) * scale;
    std::vector<double> weights(static_cast<size_t>(in));
    double sum = 0;
    for (int64_t i = 0; i < in; ++i) {
      const double x = std::abs((double(i) - center + 0.5) / stretch);
      double value = 0;
      if (x < 1) {
        value = (1.5 * x - 2.5) * x * x + 1;
      } else if (x < 2) {
        value = (((x - 5) * x + 8) * x - 4) * -0.5;
      }
      sum += weights[static_cast<size_t>(i)] = value;
    }
    for (double& weight : weights) weight /= sum;
    all.push_back(weights);
  }
  return all;
}

// An image resampled along its rows, with `bits` behind the point, or as many as 16 bits allow.
Image along_rows(const Image& image, int64_t width, int bits) {
  const auto weights = weights_of(image.size.width, width);
  double largest = 0;
  for (const auto& row : weights) largest = std::max(largest, *std::ranges::max_element(row));
  if (bits == 0) {
    while (bits < 22 && int(0.5 + largest * (1 << (bits + 1))) < (1 << 15)) ++bits;
  }
  Image made{{image.size.height, width}, image.channels, {}};
  for (int64_t y = 0; y < image.size.height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int c = 0; c < image.channels; ++c) {
        int64_t sum = int64_t{1} << (bits - 1);
        for (int64_t i = 0; i < image.size.width; ++i) {
          const double weight = weights[size_t(x)][size_t(i)] * (1 << bits);
          sum += image.at(y, i, c) * int64_t(weight + (weight < 0 ? -0.5 : 0.5));
        }
        made.bytes.push_back(uint8_t(std::clamp<int64_t>(sum >> bits, 0, 255)));
      }
    }
  }
  return made;
}

Image expected(const Image& image, Size size, Rule rule) {
  const int bits = rule == Rule::kPillow ? 22 : 0;
  const Size in = image.size;
  const bool vertical_first = rule == Rule::kPillow && in.height > size.height &&
                              in.height - size.height > 2 * (in.width - size.width);
  if (vertical_first) {
    const Image made = along_rows(image.transposed(), size.height, bits).transposed();
    return along_rows(made, size.width, bits);
  }
  const Image made = along_rows(image, size.width, bits);
  return along_rows(made.transposed(), size.height, bits).transposed();
}

// The pixels of an image, in pixels of `stride` bytes that `memory` keeps.
Pixels pixels_of(const Image& image, int stride, std::vector<uint8_t>& memory) {
  Pixels pixels{
      .rows = {}, .width = image.size.width, .channels = image.channels, .pixel_stride = stride};
  memory.assign(static_cast<size_t>(image.size.height * image.size.width * stride), 77);
  for (int64_t y = 0; y < image.size.height; ++y) {
    uint8_t* row = memory.data() + y * image.size.width * stride;
    pixels.rows.push_back(row);
    for (int64_t x = 0; x < image.size.width; ++x) {
      for (int c = 0; c < image.channels; ++c) row[x * stride + c] = image.at(y, x, c);
    }
  }
  return pixels;
}

TEST(cpu_image_resize_matches_sums_in_64_bits) {
  std::mt19937 random(1);
  const Size sizes[] = {{1, 1}, {3, 2}, {17, 5}, {5, 17}, {40, 33}, {100, 9}, {9, 100}, {64, 64}};
  for (const Size in : sizes) {
    for (const Size out : sizes) {
      for (const Rule rule : {Rule::kPillow, Rule::kTorchvision}) {
        const int channels = 1 + int(random() % 4);
        const Image image = random_image(in, channels, random);
        std::vector<uint8_t> memory;
        const Pixels pixels =
            pixels_of(image, channels == 3 && random() % 2 ? 4 : channels, memory);
        std::vector<uint8_t> made(static_cast<size_t>(out.height * out.width * channels));
        resize(pixels, out, Filter::kBicubic, rule, made.data(), 1 + int(random() % 2));
        CHECK(made == (in == out ? image : expected(image, out, rule)).bytes);
      }
    }
  }
}

TEST(cpu_image_features_are_parts_of_the_resized_image) {
  std::mt19937 random(2);
  Values values;
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 256; ++i) values[size_t(c)][size_t(i)] = float(1000 * c + i + 1);
  }
  const Image image = random_image({50, 37}, 3, random);
  std::vector<uint8_t> memory;
  const Pixels pixels = pixels_of(image, 3, memory);
  const Size resized{20, 24};
  const Image whole = expected(image, resized, Rule::kTorchvision);
  for (const auto& [top, left] : {std::pair{0, 0}, {3, 5}, {-2, -7}, {15, -3}, {-90, 0}, {0, 90}}) {
    for (const Size patch : {Size{0, 0}, Size{4, 6}}) {
      const Size frame{10, 15}, padded{12, 18};
      std::vector<float> out(3 * 12 * 18, -1.0f);
      make_features({{.pixels = pixels,
                      .resized = resized,
                      .top = top,
                      .left = left,
                      .frame = frame,
                      .padded = padded,
                      .out = out.data()}},
                    values, {patch}, Filter::kBicubic, Rule::kTorchvision, 2);
      const Size cell = patch == Size{} ? padded : patch;
      bool same = true;
      for (int64_t y = 0; y < padded.height; ++y) {
        for (int64_t x = 0; x < padded.width; ++x) {
          for (int c = 0; c < 3; ++c) {
            const int64_t row = y + top, column = x + left;
            const bool shown =
                row >= 0 && row < resized.height && column >= 0 && column < resized.width;
            float value = values[size_t(c)][shown ? whole.at(row, column, c) : 0];
            if (y >= frame.height || x >= frame.width) value = 0;
            const int64_t cells = y / cell.height * (padded.width / cell.width) + x / cell.width;
            const int64_t place =
                ((cells * 3 + c) * cell.height + y % cell.height) * cell.width + x % cell.width;
            same = same && out[size_t(place)] == value;
          }
        }
      }
      CHECK(same);
    }
  }
}

TEST(cpu_image_wrong_plans_are_refused) {
  std::mt19937 random(3);
  std::vector<uint8_t> memory;
  const Image image = random_image({4, 4}, 3, random);
  const Pixels pixels = pixels_of(image, 3, memory);
  const Values values{};
  std::vector<float> out(3 * 64);
  const auto make = [&](Size resized, Size frame, Size padded, Size patch) {
    make_features({{.pixels = pixels,
                    .resized = resized,
                    .frame = frame,
                    .padded = padded,
                    .out = out.data()}},
                  values, {patch}, Filter::kBilinear, Rule::kPillow, 1);
  };
  CHECK_THROWS_WITH(make({4, 0}, {4, 4}, {4, 4}, {}), "resized to is 4 x 0");
  CHECK_THROWS_WITH(make({4, 4}, {0, 4}, {4, 4}, {}), "the frame of an image is 0 x 4");
  CHECK_THROWS_WITH(make({4, 4}, {4, 4}, {4, 3}, {}), "at least that of its frame");
  CHECK_THROWS_WITH(make({4, 4}, {4, 4}, {4, 4}, {3, 2}), "a multiple of the patch");
  make({4, 4}, {4, 4}, {8, 8}, {4, 2});
}

}  // namespace
}  // namespace packhorse::image
