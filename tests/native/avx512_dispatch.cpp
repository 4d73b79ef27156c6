// In place of dispatch.cpp and the AVX2 files where the AVX-512 kernels are emulated: they are what runs, whatever the
// processor. What they take from AVX2 (the quantization of activations) is the portable one's to the bit.
#include "abi.h"
#include "int8.h"
#include "kernels.h"

extern "C" {

int32_t qd_abi_version(void) { return QD_ABI_VERSION; }
int32_t qd_isa_best(void) { return QD_AVX512; }
int32_t qd_isa(void) { return QD_AVX512; }
int32_t qd_set_isa(int32_t isa) { return isa == QD_AVX512 ? 0 : -1; }

}  // extern "C"

namespace qd {

const Isa& avx2() { return portable(); }

namespace int8 {

const Isa& avx2() { return portable(); }

}  // namespace int8
}  // namespace qd
