// LoRA adapters of a model: the memory of their slots, and how one comes to lie there.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/arena.h"
#include "model/batch.h"
#include "model/loading/precision.h"
#include "model/spec/spec.h"
#include "ops/args/lora.h"
#include "ops/backend.h"
#include "packhorse/weight_source.h"

namespace packhorse {

/// The dense layers of a layer to which an adapter may add something.
enum class LoraTarget : uint8_t {
  kQkv,
  kOutput,
  kCrossQuery,
  kCrossKeyValue,
  kCrossOutput,
  kUp,
  kDown
};
template <class T>
using PerTarget = std::array<T, 7>;

/// The slots of all adapters for one stack: an entry for each set of weights, as
/// StackWeights::layers.
using StackSlots = std::vector<PerTarget<LoraLayer>>;

/// The slots of all adapters in device memory.
struct AdapterSlots {
  StackSlots stack;
  StackSlots source;  // the stack that encodes sources; empty without one
};

/// Takes the memory of all slots from the arena. If `device` is not null, the arena carves, and the
/// slots are made empty.
AdapterSlots take_adapter_slots(const Spec& spec, const Precision& precision, Backend& backend,
                                const AdapterCapacity& capacity, Arena& arena,
                                DeviceContext* device);

/// One adapter as a slot holds it, in host memory.
struct Adapter {
  struct Layer {
    int32_t rank = 0;  // 0: it adds nothing here, and a and b are empty
    std::vector<char> a;
    std::vector<char> b;
  };
  using Stack = std::vector<PerTarget<Layer>>;
  Stack stack;
  Stack source;  // the stack that encodes sources; empty without one
};

/// The layers of one stack that an adapter adds to.
struct AdapterUses {
  PerTarget<bool> any = {};  // in some layer
  bool up_of_all = false;    // to kUp in every layer
  bool operator[](LoraTarget target) const { return any[static_cast<size_t>(target)]; }
};
AdapterUses uses_of(const Adapter::Stack& stack);

/// Reads the tensors `NAME.lora_a` [rank, in_features] and `NAME.lora_b` [out_features, rank],
/// where NAME is a dense layer of a stack or a tensor of several as docs/developer/tensors.md names
/// them; lora_b holds the scale already. Throws InvalidArgument naming a tensor that is
/// missing, has a wrong shape, too large a rank, NaN or Inf, or that no layer takes.
Adapter read_adapter(const Spec& spec, const Precision& precision, Backend& backend,
                     const AdapterCapacity& capacity, const WeightSource& source);

/// Puts an adapter into a slot that no batch on the device uses.
void load_adapter(const Adapter& adapter, const AdapterSlots& slots, int32_t slot,
                  DeviceContext& device);

/// The adapters of a batch.
struct AdapterBatch {
  const StackSlots* slots = nullptr;
  const int32_t* rows = nullptr;  // [T] the slot of each token or -1, in device memory
  AdapterUses uses = {};          // `any`: of any adapter; `up_of_all`: of each token's
};

}  // namespace packhorse
