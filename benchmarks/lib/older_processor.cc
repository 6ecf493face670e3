// A library for LD_PRELOAD that shows a program a processor without AVX-512, AMX and AVX-VNNI.
//
// Programs ask the processor by the instruction CPUID. Where the processor can refuse it (the flag
// cpuid_fault of /proc/cpuinfo), Linux turns it into a signal, whose handler here answers with what
// the processor says less those features. Threads inherit the refusal; a program that is started
// anew loads this library again.
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

namespace {

constexpr int kRefuse = 0;
constexpr int kAllow = 1;
constexpr int kBytes = 2;  // length of the instruction

void set_cpuid(int how) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, how); }

void answer(int signal_number, siginfo_t* /*info*/, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]);
  if (code[0] != 0x0f || code[1] != 0xa2) {  // another fault, which then happens once more
    std::signal(signal_number, SIG_DFL);
    return;
  }
  unsigned a = 0, b = 0, c = 0, d = 0;
  const auto leaf = static_cast<unsigned>(registers[REG_RAX]);
  const auto part = static_cast<unsigned>(registers[REG_RCX]);
  set_cpuid(kAllow);
  __cpuid_count(leaf, part, a, b, c, d);
  set_cpuid(kRefuse);
  if (leaf == 7 && part == 0) {
    a = 0;              // no further parts: AVX-VNNI, AVX512-BF16, AVX10 and others of their age
    b &= ~0xdc230000U;  // AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL
    c &= ~0x00005942U;  // AVX-512 VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; GFNI
    d &= ~0x03c0010cU;  // AVX-512 4VNNIW, 4FMAPS, VP2INTERSECT, FP16; AMX
  } else if (leaf == 7) {
    a = b = c = d = 0;
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += kBytes;
}

__attribute__((constructor)) void refuse() {
  struct sigaction action = {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSEGV, &action, nullptr) == 0) set_cpuid(kRefuse);
}

}  // namespace
