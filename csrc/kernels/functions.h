/* What each instruction set has: the functions that Python calls, described in interface.cpp. */
#ifndef VLLM_KERNELS_FUNCTIONS_H
#define VLLM_KERNELS_FUNCTIONS_H
#include "kernels.h"

struct vk_functions {
  int32_t (*layers)(const vk_layer *layers, int64_t count, const vk_step *step, void *x);
  int32_t (*attend)(const vk_attention *layer, const vk_step *step, void *qkv, void *out);
  int32_t (*linear)(vk_pool *pool, const vk_linear *linear, int64_t type, const void *x, int64_t m, void *out);
  void (*norm)(vk_pool *pool, const void *weight, float eps, int64_t type, const void *x, int64_t m, int64_t k,
               void *out);
  void (*highest)(vk_pool *pool, int64_t type, const void *rows, int64_t m, int64_t n, float *best, int64_t *at);
  void (*embed)(const vk_linear *table, int64_t type, const int64_t *ids, int64_t m, void *out);
};

/* On processors of x86-64 only. */
extern const vk_functions kAvx512, kAvx2;

/* NULL where this processor does not have the instruction set. */
const vk_functions *functions_of(int32_t instruction_set);
/* Those that the pool was made for. */
const vk_functions *pool_functions(const vk_pool *pool);
#endif
