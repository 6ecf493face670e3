// Instructions of one thread that compute on registers, and those that need no emulation.
//
// The approximate functions are those of the host's library, rounded to float32: their last bits
// may differ from a device's.
#include <algorithm>
#include <cmath>
#include <limits>

#include "emulator/actions.h"
#include "emulator/intrinsics.h"
#include "emulator/machine.h"
#include "emulator/numbers.h"

namespace emulated {
namespace {

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

template <float (*function)(float)>
void unary(Run& run, const Instruction& i) {
  const bool ftz = i.has("ftz");
  float x = run.get_float(i.arguments[1]);
  if (ftz) x = flush(x);
  const float y = function(x);
  run.set_float(i.arguments[0], ftz ? flush(y) : y);
}
float exp2_of(float x) { return std::exp2(x); }
float log2_of(float x) { return std::log2(x); }
float reciprocal(float x) { return 1.0f / x; }
float root(float x) { return std::sqrt(x); }
float inverse_root(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
float sine(float x) { return std::sin(x); }
float cosine(float x) { return std::cos(x); }
float tangent(float x) { return std::tanh(x); }

// The kind of a type: its letter (b, u, s, f) and its bits.
struct Type {
  char letter = 'b';
  int bits = 32;
};
Type type_of(const std::string& part) {
  Type type;
  type.letter = part[0] == 'p' ? 'b' : part[0];
  type.bits = part == "pred" ? 1 : std::atoi(part.c_str() + 1);
  return type;
}
uint64_t masked(uint64_t x, int bits) { return bits >= 64 ? x : x & ((uint64_t{1} << bits) - 1); }
int64_t extended(uint64_t x, int bits) {
  const int by = 64 - bits;
  return static_cast<int64_t>(x << by) >> by;
}

void move(Run& run, const Instruction& i) {
  const Argument& to = i.arguments[0];
  const Argument& from = i.arguments[1];
  const int bits = type_of(i.parts.back()).bits;
  if (to.kind == Argument::Kind::kList) {
    const uint64_t x = run.get(from);
    const int each = bits / static_cast<int>(to.parts.size());
    for (size_t k = 0; k < to.parts.size(); ++k) {
      run.set(to.parts[k], masked(x >> (each * static_cast<int>(k)), each));
    }
  } else if (from.kind == Argument::Kind::kList) {
    uint64_t x = 0;
    const int each = bits / static_cast<int>(from.parts.size());
    for (size_t k = 0; k < from.parts.size(); ++k) {
      x |= masked(run.get(from.parts[k]), each) << (each * static_cast<int>(k));
    }
    run.set(to, x);
  } else {
    run.set(to, masked(run.get(from), bits == 1 ? 64 : bits));
  }
}

template <class T>
bool compares(const std::string& how, T a, T b) {
  if (how == "eq") return a == b;
  if (how == "ne" || how == "neu") return a != b;
  if (how == "lt" || how == "lo") return a < b;
  if (how == "le" || how == "ls") return a <= b;
  if (how == "gt" || how == "hi") return a > b;
  if (how == "ge" || how == "hs") return a >= b;
  machine().fail("the comparison " + how + " is not emulated");
}

void set_predicate(Run& run, const Instruction& i) {
  const Type type = type_of(i.parts.back());
  const uint64_t a = run.get(i.arguments[1]);
  const uint64_t b = run.get(i.arguments[2]);
  bool result = false;
  if (type.letter == 'f') {
    result = compares(i.parts[1], run.get_float(i.arguments[1]), run.get_float(i.arguments[2]));
  } else if (type.letter == 's') {
    result = compares(i.parts[1], extended(a, type.bits), extended(b, type.bits));
  } else {
    result = compares(i.parts[1], masked(a, type.bits), masked(b, type.bits));
  }
  run.set(i.arguments[0], result ? 1 : 0);
}

void select(Run& run, const Instruction& i) {
  run.set(i.arguments[0],
          run.get(i.arguments[3]) != 0 ? run.get(i.arguments[1]) : run.get(i.arguments[2]));
}

// add, sub, mul, fma of one format, lane by lane of packed pairs.
template <class F>
void arithmetic(Run& run, const Instruction& i, F function) {
  const std::string& name = i.parts.back();
  const auto get = [&](size_t k) { return k < i.arguments.size() ? run.get(i.arguments[k]) : 0; };
  if (name == "f16x2" || name == "bf16x2" || name == "f16" || name == "bf16") {
    const bool half = name[0] == 'f';
    const int count = name.back() == '2' ? 2 : 1;
    uint64_t result = 0;
    for (int k = 0; k < count; ++k) {
      const auto value = [&](size_t which) -> double {
        const auto bits = static_cast<uint32_t>(get(which) >> (16 * k)) & 0xffffu;
        return half ? half_value(bits) : bfloat_value(bits);
      };
      const double y = function(value(1), value(2), value(3));
      const uint16_t bits = half ? half_bits(y) : bfloat_bits(y);
      result |= uint64_t{bits} << (16 * k);
    }
    run.set(i.arguments[0], result);
  } else if (name == "f32") {
    const bool ftz = i.has("ftz");
    const auto value = [&](size_t which) {
      const float x = which < i.arguments.size() ? run.get_float(i.arguments[which]) : 0;
      return ftz ? flush(x) : x;
    };
    const float y = function(value(1), value(2), value(3));
    run.set_float(i.arguments[0], ftz ? flush(y) : y);
  } else {
    const Type type = type_of(name);
    const bool wide = i.has("wide");
    const uint64_t y = type.letter == 's'
                           ? static_cast<uint64_t>(function(extended(get(1), type.bits),
                                                            extended(get(2), type.bits),
                                                            static_cast<int64_t>(get(3))))
                           : function(masked(get(1), type.bits), masked(get(2), type.bits), get(3));
    if (i.has("hi")) return run.set(i.arguments[0], masked(y >> type.bits, type.bits));
    run.set(i.arguments[0], masked(y, wide ? 2 * type.bits : type.bits));
  }
}
void add(Run& run, const Instruction& i) {
  arithmetic(run, i, [](auto a, auto b, auto) { return a + b; });
}
void subtract(Run& run, const Instruction& i) {
  arithmetic(run, i, [](auto a, auto b, auto) { return a - b; });
}
void multiply(Run& run, const Instruction& i) {
  arithmetic(run, i, [](auto a, auto b, auto) { return a * b; });
}
void multiply_add(Run& run, const Instruction& i) {
  arithmetic(run, i, []<class T>(T a, T b, T c) -> T {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fma(a, b, c);
    } else {
      return a * b + c;
    }
  });
}
template <bool larger>
void extremum(Run& run, const Instruction& i) {
  const bool nan = i.has("NaN");
  arithmetic(run, i, [=]<class T>(T a, T b, T c) -> T {
    if constexpr (std::is_floating_point_v<T>) {
      if (nan && (a != a || b != b)) return std::numeric_limits<T>::quiet_NaN();
      (void)c;
      return larger ? std::fmax(a, b) : std::fmin(a, b);
    } else {
      return larger ? std::max(a, b) : std::min(a, b);
    }
  });
}

void negate(Run& run, const Instruction& i) {
  const std::string& name = i.parts.back();
  const uint64_t x = run.get(i.arguments[1]);
  const uint64_t sign = name.ends_with("x2") ? 0x80008000u : name == "f32" ? 0x80000000u : 0x8000u;
  if (name[0] == 's') return run.set(i.arguments[0], masked(uint64_t{0} - x, type_of(name).bits));
  run.set(i.arguments[0], i.parts[0] == "abs" ? x & ~sign : x ^ sign);
}

void logic(Run& run, const Instruction& i) {
  const uint64_t a = run.get(i.arguments[1]);
  const std::string& name = i.parts[0];
  const int bits = type_of(i.parts.back()).bits;
  if (name == "not") {
    return run.set(i.arguments[0], bits == 1 ? static_cast<uint64_t>(a == 0) : masked(~a, bits));
  }
  const uint64_t b = run.get(i.arguments[2]);
  uint64_t y = 0;
  if (name == "and") y = a & b;
  if (name == "or") y = a | b;
  if (name == "xor") y = a ^ b;
  const auto by = static_cast<int>(std::min<uint64_t>(b & 0xffffffffu, 64));
  if (name == "shl") y = by >= bits ? 0 : a << by;
  if (name == "shr") {
    if (type_of(i.parts.back()).letter == 's') {
      y = static_cast<uint64_t>(extended(a, bits) >> std::min(by, 63));
    } else {
      y = by >= bits ? 0 : masked(a, bits) >> by;
    }
  }
  run.set(i.arguments[0], masked(y, bits));
}

void logic3(Run& run, const Instruction& i) {
  const uint32_t a = run.get32(i.arguments[1]);
  const uint32_t b = run.get32(i.arguments[2]);
  const uint32_t c = run.get32(i.arguments[3]);
  const uint32_t table = run.get32(i.arguments[4]);
  uint32_t y = 0;
  for (uint32_t k = 0; k < 8; ++k) {
    if ((table >> k & 1) == 0) continue;
    y |= ((k & 4) != 0 ? a : ~a) & ((k & 2) != 0 ? b : ~b) & ((k & 1) != 0 ? c : ~c);
  }
  run.set(i.arguments[0], y);
}

void permute(Run& run, const Instruction& i) {
  if (i.parts.size() != 2) run.fail("prmt with a mode is not emulated");
  run.set(i.arguments[0], __byte_perm(run.get32(i.arguments[1]), run.get32(i.arguments[2]),
                                      run.get32(i.arguments[3])));
}

void field(Run& run, const Instruction& i) {
  const bool is_signed = i.parts.back()[0] == 's';
  const uint32_t a = run.get32(i.arguments[1]);
  const uint32_t from = run.get32(i.arguments[2]) & 255u;
  const uint32_t length = run.get32(i.arguments[3]) & 255u;
  uint64_t y = from >= 32 ? 0 : uint64_t{a} >> from;
  if (length < 32) y &= (uint64_t{1} << length) - 1;
  if (is_signed && length > 0 && length < 32)
    y = static_cast<uint64_t>(extended(y, static_cast<int>(length)));
  run.set(i.arguments[0], y & 0xffffffffu);
}

void convert(Run& run, const Instruction& i) {
  const std::string& from = i.parts.back();
  const std::string& to = i.parts[i.parts.size() - 2];
  const Argument& result = i.arguments[0];
  const uint64_t bits = run.get(i.arguments[1]);
  if (from == "f32" && (to == "f16x2" || to == "bf16x2" || to == "e4m3x2")) {
    float high = run.get_float(i.arguments[1]);
    float low = run.get_float(i.arguments[2]);
    if (i.has("relu")) {
      high = high > 0 ? high : 0;
      low = low > 0 ? low : 0;
    }
    if (to == "e4m3x2") {
      return run.set(result, static_cast<uint64_t>(e4m3_bits(high) << 8 | e4m3_bits(low)));
    }
    const bool half = to[0] == 'f';
    const uint32_t upper = half ? half_bits(high) : bfloat_bits(high);
    const uint32_t lower = half ? half_bits(low) : bfloat_bits(low);
    return run.set(result, upper << 16 | lower);
  }
  if (to == "f16x2" && (from == "e4m3x2" || from == "e5m2x2")) {
    const auto value = from[1] == '4' ? e4m3_value : e5m2_value;
    const uint32_t low = half_bits(value(static_cast<uint32_t>(bits) & 255u));
    const uint32_t high = half_bits(value(static_cast<uint32_t>(bits) >> 8 & 255u));
    return run.set(result, high << 16 | low);
  }
  if (to == "e4m3x2" && from == "f16x2") {
    const auto word = static_cast<uint32_t>(bits);
    return run.set(result, static_cast<uint64_t>(e4m3_bits(half_value(word >> 16)) << 8 |
                                                 e4m3_bits(half_value(word & 0xffffu))));
  }
  if (from[0] == 'f' || from == "bf16") {
    const auto word = static_cast<uint32_t>(bits);
    const float x = from == "f16"    ? half_value(word & 0xffffu)
                    : from == "bf16" ? bfloat_value(word & 0xffffu)
                                     : std::bit_cast<float>(word);
    if (from == "f64") run.fail("cvt from f64 is not emulated");
    if (to == "f32") return run.set_float(result, x);
    if (to == "f16") return run.set(result, half_bits(x));
    if (to == "bf16") return run.set(result, bfloat_bits(x));
    if (to == "tf32") return run.set(result, (word + 0x1000u) & ~0x1fffu);
    const Type type = type_of(to);
    double y = i.has("rzi")   ? std::trunc(x)
               : i.has("rmi") ? std::floor(x)
               : i.has("rpi") ? std::ceil(x)
                              : std::nearbyint(x);
    const bool is_signed = type.letter == 's';
    const double most = std::ldexp(1.0, is_signed ? type.bits - 1 : type.bits) - 1;
    const double least = is_signed ? -most - 1 : 0;
    y = x != x ? 0 : std::clamp(y, least, most);
    return run.set(result, masked(static_cast<uint64_t>(static_cast<int64_t>(y)), type.bits));
  }
  const Type source = type_of(from);
  const int64_t x = source.letter == 's' ? extended(bits, source.bits)
                                         : static_cast<int64_t>(masked(bits, source.bits));
  if (to == "f32") return run.set_float(result, static_cast<float>(x));
  if (to == "f16") return run.set(result, half_bits(static_cast<double>(x)));
  if (to == "bf16") return run.set(result, bfloat_bits(static_cast<double>(x)));
  const Type type = type_of(to);
  int64_t y = x;
  if (i.has("sat")) {
    const int64_t most =
        type.letter == 's' ? (int64_t{1} << (type.bits - 1)) - 1 : (int64_t{1} << type.bits) - 1;
    y = std::clamp<int64_t>(x, type.letter == 's' ? -most - 1 : 0, most);
  }
  run.set(result, masked(static_cast<uint64_t>(y), type.bits));
}

void to_shared(Run& run, const Instruction& i) {
  const uint64_t x = run.get(i.arguments[1]);
  if (i.has("shared")) {
    if (!i.has("to")) run.fail("cvta from shared memory is not emulated");
    return run.set(i.arguments[0], shared_address(reinterpret_cast<const void*>(x)));
  }
  run.set(i.arguments[0], x);
}

void map_address(Run& run, const Instruction& i) {
  if (run.get32(i.arguments[2]) != 0) run.fail("mapa: clusters are emulated as single blocks");
  run.set(i.arguments[0], run.get(i.arguments[1]));
}

void nothing(Run&, const Instruction&) {}
void policy(Run& run, const Instruction& i) { run.set(i.arguments[0], 0); }
void sleep(Run&, const Instruction&) { pause(); }
void trap_here(Run& run, const Instruction&) { run.fail("trap"); }
void vote_here(Run& run, const Instruction& i) {
  const uint32_t mask = run.get32(i.arguments[2]);
  const uint32_t all = ballot(mask, run.get(i.arguments[1]) != 0);
  run.set(i.arguments[0], i.has("ballot") ? all : i.has("any") ? all != 0 : all == mask);
}
void population(Run& run, const Instruction& i) {
  run.set(i.arguments[0], static_cast<uint64_t>(std::popcount(run.get(i.arguments[1]))));
}

struct Entry {
  const char* name;
  Action action;
};
constexpr Entry kEntries[] = {
    {"mov", move},
    {"setp", set_predicate},
    {"selp", select},
    {"add", add},
    {"sub", subtract},
    {"mul", multiply},
    {"fma", multiply_add},
    {"mad", multiply_add},
    {"max", extremum<true>},
    {"min", extremum<false>},
    {"neg", negate},
    {"abs", negate},
    {"and", logic},
    {"or", logic},
    {"xor", logic},
    {"not", logic},
    {"shl", logic},
    {"shr", logic},
    {"lop3", logic3},
    {"prmt", permute},
    {"bfe", field},
    {"cvt", convert},
    {"cvta", to_shared},
    {"mapa", map_address},
    {"ex2", unary<exp2_of>},
    {"lg2", unary<log2_of>},
    {"rcp", unary<reciprocal>},
    {"sqrt", unary<root>},
    {"rsqrt", unary<inverse_root>},
    {"sin", unary<sine>},
    {"cos", unary<cosine>},
    {"tanh", unary<tangent>},
    {"griddepcontrol", nothing},
    {"setmaxnreg", nothing},
    {"prefetch", nothing},
    {"prefetchu", nothing},
    {"membar", nothing},
    {"discard", nothing},
    {"applypriority", nothing},
    {"createpolicy", policy},
    {"nanosleep", sleep},
    {"trap", trap_here},
    {"brkpt", trap_here},
    {"vote", vote_here},
    {"popc", population},
    {"pmevent", nothing},
};

}  // namespace

Action scalar_action(const Instruction& instruction) {
  for (const Entry& entry : kEntries) {
    if (instruction.parts[0] == entry.name) return entry.action;
  }
  return nullptr;
}

Action find_action(const Instruction& instruction) {
  for (const auto family :
       {scalar_action, memory_action, copy_action, barrier_action, product_action}) {
    if (const Action action = family(instruction)) return action;
  }
  return nullptr;
}

}  // namespace emulated
