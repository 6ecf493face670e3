// Inline PTX, parsed once and then run by each thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/asm.h"

namespace emulated {

/// An operand of an instruction.
struct Argument {
  enum class Kind : uint8_t { kOperand, kRegister, kNumber, kSpecial, kList, kAddress, kNone };
  Kind kind = Kind::kNone;
  int index = 0;        // number of the asm statement's operand, or of a register
  uint64_t number = 0;  // a constant, or what is added to an address
  std::string name;     // name of a special register
  bool negated = false;
  std::vector<Argument> parts;  // elements of a list; parts of an address
};

struct Instruction;
struct Run;
using Action = void (*)(Run& run, const Instruction& instruction);

struct Instruction {
  std::string text;                // the opcode with its modifiers
  std::vector<std::string> parts;  // split at dots
  std::vector<Argument> arguments;
  int guard = -1;  // the register of its predicate
  bool guard_negated = false;
  int target = -1;  // instruction that a branch goes to
  Action action = nullptr;
  bool has(std::string_view part) const;
};

struct Program {
  std::vector<Instruction> instructions;
  int registers = 0;
};

/// Parses the text; throws Error where it is not understood.
std::unique_ptr<Program> parse_ptx(const char* text);
/// Returns the function that runs an instruction; null where the instruction is not known.
Action find_action(const Instruction& instruction);

/// One run of a program by one thread.
struct Run {
  const Program& program;
  const char* place;
  Operand* operands;
  int count;
  uint64_t* registers;

  uint64_t get(const Argument& argument) const;
  uint32_t get32(const Argument& argument) const { return static_cast<uint32_t>(get(argument)); }
  float get_float(const Argument& argument) const;
  void set(const Argument& argument, uint64_t value);
  void set_float(const Argument& argument, float value);
  /// The value of an address in brackets.
  uint64_t address(const Argument& argument) const;
  /// The operand of the asm statement that an argument is.
  const Operand& operand(const Argument& argument) const;
  [[noreturn]] void fail(const std::string& what) const;
};

}  // namespace emulated
