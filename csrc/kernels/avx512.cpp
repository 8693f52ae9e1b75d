/* The kernels on AVX-512 with its bfloat16 products. */
#if defined(__x86_64__)
#define VLLM_KERNELS_SIMD "simd_avx512.h"
#include "layers.h"

const vk_functions kAvx512 = kFunctions;

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
