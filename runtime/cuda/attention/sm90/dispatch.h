// The complete list of Hopper attention kernels: the traits of each plan at each head tile.
#pragma once

#include "cuda/attention/config.h"
#include "cuda/attention/sm90/launch.h"

namespace packhorse::cuda {

/// The arguments of AttentionTraits that follow the head tile are consumer warpgroups, keys per
/// tile, key/value stages, Q stages, blocks per SM, and the flags. They are chosen so that
/// registers and shared memory suffice: with three consumer warpgroups a thread has 160 registers,
/// with two 240, and with four blocks of one warpgroup 96.
template <class Element, int head_tile, AttentionPlan plan, bool float8_out = false>
struct AttentionPlanTraits;

template <class E, int d, bool o>
struct AttentionPlanTraits<E, d, AttentionPlan::kSingleTile, o>
    : AttentionTraits<E, d, 1, attention_kv_tile(d), 1, 2, 4, false, false, true, o> {};
template <class E, int d, bool o>
struct AttentionPlanTraits<E, d, AttentionPlan::kManyBlocks, o>
    : AttentionTraits<E, d, 1, attention_kv_tile(d), 2, 2, 3, false, false, false, o> {};
template <class E, int d, bool o>
struct AttentionPlanTraits<E, d, AttentionPlan::kWindow, o>
    : AttentionTraits<E, d, 1, attention_kv_tile(d, true), 3, 2, 3, false, false, false, o> {};
template <class E, int d, bool o>
struct AttentionPlanTraits<E, d, AttentionPlan::kPingPong, o>
    : AttentionTraits<E, d, d <= 64 ? 3 : 2, attention_kv_tile(d), d == 32 ? 3 : 2,
                      d == 256 ? 1 : 2, 1, true, false, false, o> {};
template <class E, int d, bool o>
struct AttentionPlanTraits<E, d, AttentionPlan::kTerm, o>
    : AttentionTraits<E, d, 2, attention_kv_tile(d), 2, 1, 1, true, true, false, o> {};

/// Launches the kernel of a plan and returns true, or returns false where this build has no such
/// kernel. The files d*.cu instantiate it, one per head tile and dtype of results, so that they
/// compile side by side.
template <class Element, int head_tile, bool float8_out>
bool launch_attention_plan(AttentionPlan plan, const AttentionArgs& args,
                           const AttentionLaunch& how, const KernelStream& stream) {
  const auto launch = [&](auto traits) {
    launch_attention_kernel<decltype(traits)>(args, how, stream);
    return true;
  };
  switch (plan) {
    case AttentionPlan::kSingleTile:
      if constexpr (head_tile <= 64)
        return launch(
            AttentionPlanTraits<Element, head_tile, AttentionPlan::kSingleTile, float8_out>{});
      break;
    case AttentionPlan::kManyBlocks:
      if constexpr (head_tile <= 64)
        return launch(
            AttentionPlanTraits<Element, head_tile, AttentionPlan::kManyBlocks, float8_out>{});
      break;
    case AttentionPlan::kWindow:
      if constexpr (head_tile <= 64)
        return launch(
            AttentionPlanTraits<Element, head_tile, AttentionPlan::kWindow, float8_out>{});
      break;
    case AttentionPlan::kPingPong:
      return launch(
          AttentionPlanTraits<Element, head_tile, AttentionPlan::kPingPong, float8_out>{});
    case AttentionPlan::kTerm:
      return launch(AttentionPlanTraits<Element, head_tile, AttentionPlan::kTerm, float8_out>{});
  }
  return false;
}

}  // namespace packhorse::cuda

#define PACKHORSE_INSTANTIATE_ATTENTION(head_tile, float8_out)                                  \
  template bool packhorse::cuda::launch_attention_plan<cutlass::half_t, head_tile, float8_out>( \
      packhorse::cuda::AttentionPlan, const packhorse::AttentionArgs&,                          \
      const packhorse::cuda::AttentionLaunch&, const KernelStream&);                            \
  template bool                                                                                 \
  packhorse::cuda::launch_attention_plan<cutlass::bfloat16_t, head_tile, float8_out>(           \
      packhorse::cuda::AttentionPlan, const packhorse::AttentionArgs&,                          \
      const packhorse::cuda::AttentionLaunch&, const KernelStream&)
