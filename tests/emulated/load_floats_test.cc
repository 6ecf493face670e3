// Numbers of 16 bits that become float32: each exactly, none beyond the count, and from any
// address.
#include "cuda/device/io.h"
#include "emulated_stream.h"
#include "emulated_test.h"

namespace packhorse::cuda {
namespace {

using namespace packhorse::emulated_test;

template <class T>
void check(size_t count, size_t before) {
  Array<T> from(before + count);
  for (size_t i = 0; i < from.size(); ++i) from[i] = rounded<T>(0.37 * static_cast<double>(i) - 9);
  Array<float> to(count + 1);
  launch_load_floats(from.data() + before, kDType<T>, static_cast<int64_t>(count), to.data(),
                     emulated_stream());
  for (size_t i = 0; i < count; ++i) CHECK(to_double(to[i]) == to_double(from[before + i]));
  CHECK(std::isnan(to[count]));  // as it was
}

}  // namespace

TEST(load_floats) {
  for (const size_t count : {size_t{1}, size_t{255}, size_t{1237}}) {
    for (const size_t before : {size_t{0}, size_t{3}}) {
      check<__half>(count, before);
      check<__nv_bfloat16>(count, before);
    }
  }
  check<__half>(256 * 4096 + 5, 1);  // more than the threads of all blocks
}

}  // namespace packhorse::cuda
