// The instructions that are emulated, by family. Each function returns null for all others.
#pragma once

#include "emulator/ptx.h"

namespace emulated {

Action scalar_action(const Instruction& instruction);
Action memory_action(const Instruction& instruction);
Action copy_action(const Instruction& instruction);
Action barrier_action(const Instruction& instruction);
Action product_action(const Instruction& instruction);
Action group_action(const Instruction& instruction);  // wgmma

}  // namespace emulated
