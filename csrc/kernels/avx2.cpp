/* The kernels on AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define VLLM_KERNELS_SIMD "simd_avx2.h"
#include "layers.h"

const vk_functions kAvx2 = kFunctions;

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
