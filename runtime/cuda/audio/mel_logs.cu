// Kernel that makes frames of samples. A block has four frames. Their 400 samples x[20 a + b] are
// transformed in two steps of 20 (Cooley and Tukey 1965): over a for each b, and, times
// exp(-2 pi i b c / 400), over b. All of it is in float64, as on the host: bands that are kept may
// be 1e-8 of the largest one, which float32 loses beside it. That is far below a hundredth of what
// an encoder computes for these frames.
#include "cuda/audio/mel_logs.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/reduce.cuh"

namespace packhorse::cuda {
namespace {

constexpr int kFrames = 4;
constexpr int kThreads = 256;
constexpr int kEach = kThreads / kFrames;  // threads of a frame's bands
constexpr int kWindow = kFrameWindow;
constexpr int kBins = kWindow / 2 + 1;
constexpr int kStep = 20;
constexpr int kKept = kStep / 2 + 1;  // the others of a transform of real numbers are conjugates
constexpr int kMostCorners = kMostMels + 2;
constexpr double kPi = 3.14159265358979323846;
constexpr double kHertz = 40;  // from bin to bin
constexpr double kFloor = 1e-10;
static_assert(kStep * kStep == kWindow && kEach % 32 == 0);

// Slaney's scale is linear up to 1000 Hz, which are 15 of its units, and logarithmic above.
__device__ double hertz_of(double mel) {
  const double step = log(6.4) / 27;
  return mel < 15 ? mel * (200.0 / 3) : 1000 * exp(step * (mel - 15));
}

__device__ double2 times(const double2& a, const double2& b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

// The power in a band, a triangle of area 1 over three corners.
__device__ double band_power(const double* corners, const double* powers) {
  const double low = corners[0];
  const double middle = corners[1];
  const double high = corners[2];
  const double rise = 1 / (middle - low);
  const double fall = 1 / (high - middle);
  double sum = 0;
  for (int bin = static_cast<int>(low / kHertz); bin < kBins && bin * kHertz < high; ++bin) {
    const double weight = fmin((bin * kHertz - low) * rise, (high - bin * kHertz) * fall);
    if (weight > 0) sum += weight * powers[bin];
  }
  return sum * 2 / (high - low);
}

__global__ void __launch_bounds__(kThreads)
    mel_logs_kernel(const __grid_constant__ MelLogsArgs args) {
  __shared__ double2 roots[kWindow];  // exp(-2 pi i k / 400)
  __shared__ double corners[kMostCorners];
  __shared__ double x[kFrames * kWindow];
  __shared__ double2 inner[kFrames * kStep * kKept];
  __shared__ double powers[kFrames * kBins];
  __shared__ float largest[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t rows = args.out.shape[0];
  const int bands = static_cast<int>(args.out.shape[1]);
  const int64_t first = int64_t{blockIdx.x} * kFrames;
  for (int i = thread; i < kWindow; i += kThreads) {
    const double angle = -2 * kPi / kWindow * i;
    roots[i] = {cos(angle), sin(angle)};
  }
  const double highest = 15 + log(8.0) / (log(6.4) / 27);  // 8000 Hz in mels
  for (int i = thread; i < bands + 2; i += kThreads)
    corners[i] = hertz_of(highest * i / (bands + 1));
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();

  for (int i = thread; i < kFrames * kWindow; i += kThreads) {
    const int frame = i / kWindow;
    const int place = i % kWindow;
    const double weight = 0.5 - 0.5 * roots[place].x;
    x[i] = first + frame < rows ? weight * args.samples[(first + frame) * kFrameHop + place] : 0;
  }
  __syncthreads();
  for (int i = thread; i < kFrames * kStep * kKept; i += kThreads) {
    const int b = i / kKept % kStep;
    const int c = i % kKept;
    const double* const from = x + i / (kStep * kKept) * kWindow + b;
    double2 sum = {0, 0};
    int turn = 0;
    for (int a = 0; a < kStep; ++a) {
      sum.x += from[kStep * a] * roots[turn].x;
      sum.y += from[kStep * a] * roots[turn].y;
      turn = (turn + kStep * c) % kWindow;
    }
    inner[i] = times(sum, roots[b * c]);
  }
  __syncthreads();
  for (int i = thread; i < kFrames * kBins; i += kThreads) {
    int bin = i % kBins;
    if (bin % kStep >= kKept) bin = kWindow - bin;  // its conjugate, whose power is equal
    const double2* const from = inner + i / kBins * kStep * kKept + bin % kStep;
    double2 sum = {0, 0};
    int turn = 0;
    for (int b = 0; b < kStep; ++b) {
      const double2 term = times(from[b * kKept], roots[turn]);
      sum.x += term.x;
      sum.y += term.y;
      turn = (turn + kStep * (bin / kStep)) % kWindow;
    }
    powers[i] = sum.x * sum.x + sum.y * sum.y;
  }
  __syncthreads();
  const int frame = thread / kEach;
  const int64_t row = first + frame;
  float most[1] = {-INFINITY};
  if (row < rows) {
    float* const out = static_cast<float*>(args.out.data) + row * args.out.row_stride;
    for (int band = thread % kEach; band < bands; band += kEach) {
      const double power = band_power(corners + band, powers + frame * kBins);
      out[band] = static_cast<float>(log10(fmax(kFloor, power)));
      most[0] = fmaxf(most[0], out[band]);
    }
  }
  group_max<32>(most, static_cast<float*>(nullptr));
  if (thread % 32 == 0) largest[thread / 32] = most[0];
  __syncthreads();
  if (thread % kEach != 0 || row >= rows) return;
  for (int warp = 1; warp < kEach / 32; ++warp) {
    most[0] = fmaxf(most[0], largest[thread / 32 + warp]);
  }
  args.largest[row] = most[0];
}

}  // namespace

void launch_mel_logs(const MelLogsArgs& args, const KernelStream& stream) {
  const dim3 blocks(block_count(args.out.shape[0], kFrames));
  launch_kernel(mel_logs_kernel, blocks, kThreads, 0, stream, args);
}

}  // namespace packhorse::cuda
