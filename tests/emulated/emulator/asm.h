// Inline PTX, as translated sources ask for it: the text of an asm statement with its operands.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

namespace emulated {

/// An operand of an asm statement. `place` is the variable itself: an output, or an input that may
/// be read after the statement, by an instruction that runs later; null where there is none.
struct Operand {
  uint64_t value = 0;  // its value when the statement ran
  void* place = nullptr;
  uint8_t bytes = 4;
  char type = 'r';  // r, l, h, f, d or n, as the constraint says
  bool output = false;
  bool input = true;
};

template <class T>
uint64_t bits_of(const T& value) {
  if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  } else {
    uint64_t bits = 0;
    static_assert(sizeof(T) <= 8);
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
  }
}

inline Operand operand_of(const char* constraint) {
  Operand operand;
  for (; *constraint == '=' || *constraint == '+' || *constraint == '&'; ++constraint) {
  }
  operand.type = *constraint;
  operand.bytes = *constraint == 'l' || *constraint == 'd' || *constraint == 'n' ? 8
                  : *constraint == 'h'                                           ? 2
                                                                                 : 4;
  return operand;
}

template <class T>
Operand out(const char* constraint, T& variable) {
  Operand operand = operand_of(constraint);
  operand.place = &variable;
  operand.output = true;
  operand.input = *constraint == '+';
  operand.bytes = sizeof(T);
  if (operand.input) operand.value = bits_of(variable);
  return operand;
}

template <class T>
Operand in(const char* constraint, T&& value) {
  using Plain = std::remove_cvref_t<T>;
  Operand operand = operand_of(constraint);
  operand.value = bits_of<Plain>(value);
  if constexpr (std::is_lvalue_reference_v<T&&>) {
    if (operand.type != 'n' && sizeof(Plain) == operand.bytes) {
      operand.place = const_cast<void*>(static_cast<const volatile void*>(&value));
    }
  }
  if (operand.bytes == 4) operand.value &= 0xffffffffu;
  if (operand.bytes == 2) operand.value &= 0xffffu;
  return operand;
}

/// Runs the text, which must be a literal. `place`: the file and line of the statement.
void run_asm(const char* place, const char* text, Operand* operands, int count);

template <class... Operands>
inline void run_asm(const char* place, const char* text, Operands... operands) {
  Operand all[sizeof...(Operands) + 1] = {operands...};
  run_asm(place, text, all, static_cast<int>(sizeof...(Operands)));
}

}  // namespace emulated
