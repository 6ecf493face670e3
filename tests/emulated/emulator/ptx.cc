// Parses inline PTX and runs it.
#include "emulator/ptx.h"

#include <array>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <unordered_map>

#include "emulator/machine.h"

namespace emulated {
namespace {

class Parser {
 public:
  explicit Parser(const char* text) {
    for (const char* at = text; *at != 0; ++at) {
      if (at[0] == '/' && at[1] == '/') {
        while (*at != 0 && *at != '\n') ++at;
        if (*at == 0) break;
      } else if (at[0] == '/' && at[1] == '*') {
        at = std::strstr(at, "*/");
        if (at == nullptr) break;
        ++at;
        continue;
      }
      if (at[0] == '%' && at[1] == '=') {  // a number for each statement: labels are its own here
        ++at;
        continue;
      }
      text_ += *at;
    }
  }

  std::unique_ptr<Program> parse() {
    program_ = std::make_unique<Program>();
    for (skip(); at_ < text_.size(); skip()) statement();
    for (const auto& [index, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) refuse("no label " + label);
      program_->instructions[index].target = found->second;
    }
    program_->registers = static_cast<int>(registers_.size());
    return std::move(program_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error("inline PTX: " + what + " in: " + text_);
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  static bool in_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
           c == '.' || c == ':';
  }
  std::string word(bool opcode) {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && in_word(text_[at_])) {
      // "a::b" is part of an opcode, "a:" is a label.
      if (text_[at_] == ':') {
        if (!opcode || at_ + 1 >= text_.size() || text_[at_ + 1] != ':') break;
        ++at_;
      }
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }
  static std::string plain(std::string name) {  // "%%name" is "%name" in other texts
    if (name.starts_with("%%")) name.erase(0, 1);
    return name;
  }

  void statement() {
    if (take('{') || take('}') || take(';')) return;
    Instruction instruction{};
    if (take('@')) {
      instruction.guard_negated = take('!');
      instruction.guard = register_of(plain(word(false)));
      if (instruction.guard < 0) refuse("a guard that is no register");
    }
    instruction.text = word(true);
    if (take(':')) {
      labels_[instruction.text] = static_cast<int>(program_->instructions.size());
      return;
    }
    if (instruction.text == ".reg" || instruction.text == ".pred") return declare();
    if (instruction.text.empty()) refuse("no instruction at " + text_.substr(at_, 20));
    split_name(instruction);
    if (instruction.parts[0] == "bra") {
      branches_.emplace_back(program_->instructions.size(), word(false));
      take(';');
    } else {
      while (!take(';')) {
        skip();
        if (at_ >= text_.size() || text_[at_] == '}') break;
        instruction.arguments.push_back(argument());
        if (take('|')) {  // two results
          Argument pair;
          pair.kind = Argument::Kind::kList;
          pair.parts = {instruction.arguments.back(), argument()};
          instruction.arguments.back() = pair;
        }
        take(',');
      }
      instruction.action = find_action(instruction);
      if (instruction.action == nullptr)
        refuse("the instruction " + instruction.text + " is not emulated");
    }
    program_->instructions.push_back(std::move(instruction));
  }

  static void split_name(Instruction& instruction) {
    std::string part;
    for (const char c : instruction.text + ".") {
      if (c == '.') {
        instruction.parts.push_back(part);
        part.clear();
      } else {
        part += c;
      }
    }
  }

  void declare() {
    word(false);  // the type
    do {
      const std::string name = plain(word(false));
      if (take('<')) {
        const int count = std::atoi(word(false).c_str());
        take('>');
        for (int i = 0; i < count; ++i) add_register(name + std::to_string(i));
      } else {
        add_register(name);
      }
    } while (take(','));
    take(';');
  }
  void add_register(const std::string& name) {
    const int index = static_cast<int>(registers_.size());
    registers_[name] = index;
  }
  int register_of(const std::string& name) const {
    const auto found = registers_.find(name);
    return found == registers_.end() ? -1 : found->second;
  }

  Argument argument() {
    if (take('{')) {
      Argument list;
      list.kind = Argument::Kind::kList;
      while (!take('}')) {
        list.parts.push_back(argument());
        take(',');
      }
      return list;
    }
    if (take('[')) {
      Argument address;
      address.kind = Argument::Kind::kAddress;
      while (!take(']')) {
        address.parts.push_back(argument());
        if (take('+')) address.number += argument().number;
        take(',');
      }
      return address;
    }
    const bool negated = take('!');
    const bool minus = take('-');
    std::string name = word(false);
    if (name.empty()) refuse("an operand at " + text_.substr(at_, 20));
    Argument result;
    result.kind = Argument::Kind::kNumber;
    result.negated = negated;
    if (name == "_") {
      result.kind = Argument::Kind::kNone;
    } else if (name[0] == '%' && name.size() > 1 &&
               std::isdigit(static_cast<unsigned char>(name[1])) != 0) {
      result.kind = Argument::Kind::kOperand;
      result.index = std::atoi(name.c_str() + 1);
    } else if (std::isdigit(static_cast<unsigned char>(name[0])) != 0) {
      result.number = number(name);
      if (minus) result.number = uint64_t{0} - result.number;
    } else {
      name = plain(name);
      result.index = register_of(name);
      if (result.index >= 0) {
        result.kind = Argument::Kind::kRegister;
      } else if (name[0] == '%') {
        result.kind = Argument::Kind::kSpecial;
        result.name = name.substr(1);
      } else {
        refuse("the name " + name);
      }
    }
    return result;
  }
  static uint64_t number(const std::string& text) {
    if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d")) {
      return std::strtoull(text.c_str() + 2, nullptr, 16);
    }
    if (text.starts_with("0b")) return std::strtoull(text.c_str() + 2, nullptr, 2);
    return std::strtoull(text.c_str(), nullptr, 0);
  }

  std::string text_;
  size_t at_ = 0;
  std::unique_ptr<Program> program_;
  std::unordered_map<std::string, int> registers_;
  std::unordered_map<std::string, int> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

uint64_t special(const std::string& name) {
  const Place& here = machine().self().place;
  const auto axis = [&](const auto& value) -> uint64_t {
    return name.back() == 'x' ? value.x : name.back() == 'y' ? value.y : value.z;
  };
  if (name.starts_with("tid.")) return axis(here.thread);
  if (name.starts_with("ntid.")) return axis(here.block_extent);
  if (name.starts_with("ctaid.") || name.starts_with("clusterid.")) return axis(here.block);
  if (name.starts_with("nctaid.") || name.starts_with("nclusterid.")) return axis(here.grid_extent);
  if (name.starts_with("cluster_nctaid.") || name == "cluster_nctarank") return 1;
  if (name.starts_with("cluster_ctaid.") || name == "cluster_ctarank") return 0;
  if (name == "laneid") return static_cast<uint64_t>(machine().self().lane());
  if (name == "warpid") return static_cast<uint64_t>(machine().self().warp());
  if (name == "smid") return 0;
  if (name.starts_with("globaltimer") || name.starts_with("clock")) return counts().instructions;
  if (name.starts_with("lanemask_")) {
    const int lane = machine().self().lane();
    const uint64_t bit = uint64_t{1} << lane;
    const uint64_t below = bit - 1;
    const std::string kind = name.substr(9);
    if (kind == "eq") return bit;
    if (kind == "lt") return below;
    if (kind == "le") return below | bit;
    if (kind == "gt") return 0xffffffffu & ~(below | bit);
    if (kind == "ge") return 0xffffffffu & ~below;
  }
  machine().fail("the special register " + name + " is not emulated");
}

}  // namespace

bool Instruction::has(std::string_view part) const {
  for (const std::string& one : parts) {
    if (one == part) return true;
  }
  return false;
}

std::unique_ptr<Program> parse_ptx(const char* text) { return Parser(text).parse(); }

uint64_t Run::get(const Argument& argument) const {
  switch (argument.kind) {
    case Argument::Kind::kOperand: {
      const Operand& of = operand(argument);
      if (of.output && of.place != nullptr) {  // written by an instruction before
        uint64_t value = 0;
        std::memcpy(&value, of.place, std::min<size_t>(of.bytes, 8));
        return argument.negated ? static_cast<uint64_t>(value == 0) : value;
      }
      return argument.negated ? static_cast<uint64_t>(of.value == 0) : of.value;
    }
    case Argument::Kind::kRegister: {
      const uint64_t value = registers[argument.index];
      return argument.negated ? static_cast<uint64_t>(value == 0) : value;
    }
    case Argument::Kind::kNumber:
      return argument.number;
    case Argument::Kind::kSpecial:
      return special(argument.name);
    default:
      fail("an operand that has no value");
  }
}

float Run::get_float(const Argument& argument) const {
  return std::bit_cast<float>(get32(argument));
}

const Operand& Run::operand(const Argument& argument) const {
  if (argument.kind != Argument::Kind::kOperand)
    fail("an operand of the asm statement is expected");
  if (argument.index >= count)
    fail("operand %" + std::to_string(argument.index) + " of " + std::to_string(count));
  return operands[argument.index];
}

void Run::set(const Argument& argument, uint64_t value) {
  switch (argument.kind) {
    case Argument::Kind::kOperand: {
      const Operand& to = operand(argument);
      if (!to.output)
        fail("operand %" + std::to_string(argument.index) + " is written, but is an input");
      std::memcpy(to.place, &value, to.bytes);
      return;
    }
    case Argument::Kind::kRegister:
      registers[argument.index] = value;
      return;
    case Argument::Kind::kNone:
      return;
    default:
      fail("a result that cannot be written");
  }
}

void Run::set_float(const Argument& argument, float value) {
  set(argument, std::bit_cast<uint32_t>(value));
}

uint64_t Run::address(const Argument& argument) const {
  if (argument.kind != Argument::Kind::kAddress || argument.parts.empty())
    fail("an address is expected");
  return get(argument.parts[0]) + argument.number;
}

void Run::fail(const std::string& what) const { machine().fail(what + ", at " + place); }

void run_asm(const char* place, const char* text, Operand* operands, int count) {
  static std::unordered_map<const char*, std::unique_ptr<Program>> programs;
  static std::array<std::pair<const char*, const Program*>, 1024> recent{};
  auto& [known, program] = recent[reinterpret_cast<uintptr_t>(text) / 8 % recent.size()];
  machine().self().at = place;
  ++mutable_counts().instructions;
  if (known != text) {
    std::unique_ptr<Program>& entry = programs[text];
    if (entry == nullptr) {
      try {
        entry = parse_ptx(text);
      } catch (const Error& error) {
        machine().fail(error.what());
      }
    }
    known = text;
    program = entry.get();
  }
  std::array<uint64_t, 64> registers;
  registers.fill(0xffffffffffffffffu);
  if (program->registers > 64) machine().fail("more than 64 registers in inline PTX");
  const Program& of = *program;
  Run run{of, place, operands, count, registers.data()};
  for (size_t i = 0; i < of.instructions.size();) {
    const Instruction& instruction = of.instructions[i];
    ++i;
    if (instruction.guard >= 0 &&
        (registers[static_cast<size_t>(instruction.guard)] != 0) == instruction.guard_negated) {
      continue;
    }
    if (instruction.target >= 0) {
      i = static_cast<size_t>(instruction.target);
    } else {
      instruction.action(run, instruction);
    }
  }
}

}  // namespace emulated
