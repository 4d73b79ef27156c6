// In place of dispatch.cpp where the AVX-512 kernels are emulated: they are what runs, whatever the processor.
#include "abi.h"

extern "C" {

int32_t qd_abi_version(void) { return QD_ABI_VERSION; }
int32_t qd_isa_best(void) { return QD_AVX512; }
int32_t qd_isa(void) { return QD_AVX512; }
int32_t qd_set_isa(int32_t isa) { return isa == QD_AVX512 ? 0 : -1; }

}  // extern "C"
