// The complete list of forms of weights in groups for which CUDA kernels are compiled.
#pragma once

#include "ops/args/weight_groups.h"

namespace packhorse::cuda {

/// Calls use<kMinima, kGroupSteps>() for a form of kBits bits. kGroupSteps is how many steps of 16
/// input features share scales: 1, 2, or 4 for groups of 64 and more.
template <int kBits, class Use>
void dispatch_groups(const WeightGroups& groups, Use use) {
  const auto sized = [&]<bool kMinima>() {
    if constexpr (kBits == 8) {
      if (groups.size == 16) return use.template operator()<kMinima, 1>();
    }
    if (groups.size == 32) return use.template operator()<kMinima, 2>();
    use.template operator()<kMinima, 4>();
  };
  groups.minima ? sized.template operator()<true>() : sized.template operator()<false>();
}

}  // namespace packhorse::cuda
