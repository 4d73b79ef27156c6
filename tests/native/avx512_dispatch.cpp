// In place of dispatch.cpp and the AVX2 files where the AVX-512 kernels are emulated: they are what runs, whatever the
// processor. What they take from AVX2 (the quantization of activations) is the portable one's to the bit.
#include "abi.h"
#include "int8.h"
#include "kernels.h"

namespace {
int32_t in_use = QD_AVX512;
}

extern "C" {

int32_t qd_abi_version(void) { return QD_ABI_VERSION; }
int32_t qd_isa_best(void) { return QD_AVX512_VNNI; }
int32_t qd_isa(void) { return in_use; }
int32_t qd_set_isa(int32_t isa) {
  if (isa != QD_AVX512 && isa != QD_AVX512_VNNI) return -1;
  in_use = isa;
  return 0;
}

}  // extern "C"

namespace qd {

const Isa& avx2() { return portable(); }

namespace int8 {

const Isa& avx2() { return portable(); }

}  // namespace int8
}  // namespace qd
