// Which instruction sets this processor and its system have, and which of them is used.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "abi.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define QD_X86 1
#endif

namespace {

#ifdef QD_X86
uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool has(uint32_t word, int bit) { return (word >> bit) & 1; }

int32_t find_best() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return QD_PORTABLE;
  constexpr int kFma = 12, kOsxsave = 27, kAvx = 28, kF16c = 29;
  if (!(has(c, kFma) && has(c, kOsxsave) && has(c, kAvx) && has(c, kF16c))) return QD_PORTABLE;
  // The system must save the registers: xmm and ymm, and for AVX-512 the masks and both halves of zmm.
  const uint64_t state = enabled_state();
  if ((state & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return QD_PORTABLE;
  constexpr int kAvx2 = 5, kF = 16, kDq = 17, kBw = 30, kVl = 31, kVbmi = 1, kVnni = 11, kBf16 = 5;
  if (!has(b, kAvx2)) return QD_PORTABLE;
  const bool wide = (state & 0xe6) == 0xe6 && has(b, kF) && has(b, kDq) && has(b, kBw) && has(b, kVl) &&
                    has(c, kVbmi) && has(c, kVnni);
  uint32_t a1 = 0, b1, c1, d1;
  if (wide && __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && has(a1, kBf16)) return QD_AVX512_VNNI;
  return QD_AVX2;
}
#else
int32_t find_best() { return QD_PORTABLE; }
#endif

int32_t best() {
  static const int32_t found = find_best();
  return found;
}

// Intel's processors multiply bf16 at a quarter of the rate of bytes, so that three bytes are faster than one bf16.
int32_t usual() {
#ifdef QD_X86
  uint32_t a, b, c, d;
  const bool intel = __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && c == signature_INTEL_ecx &&
                     d == signature_INTEL_edx;
  if (best() == QD_AVX512_VNNI && !intel) return QD_AVX512;
#endif
  return best();
}

int32_t named(const char* name) {
  if (name == nullptr || *name == 0) return usual();
  const char* const names[] = {"portable", "avx2", "avx512", "avx512_vnni"};
  for (int32_t isa = QD_PORTABLE; isa <= QD_AVX512_VNNI; ++isa)
    if (std::strcmp(name, names[isa]) == 0 && isa <= best()) return isa;
  return usual();  // the caller compares, and says what is wrong
}

std::atomic<int32_t>& in_use() {
  static std::atomic<int32_t> isa{named(std::getenv("QUANTDISPATCH_ISA"))};
  return isa;
}

}  // namespace

extern "C" {

int32_t qd_abi_version(void) { return QD_ABI_VERSION; }

int32_t qd_isa_best(void) { return best(); }

int32_t qd_isa(void) { return in_use().load(std::memory_order_relaxed); }

int32_t qd_set_isa(int32_t isa) {
  if (isa < QD_PORTABLE || isa > best()) return -1;
  in_use().store(isa, std::memory_order_relaxed);
  return 0;
}

}  // extern "C"
