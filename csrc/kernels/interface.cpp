/* What Python calls: each function goes to the instruction set that its pool was made for.
 *
 * The functions that return a number return 0 when there was no memory, and then the result is not to be used. */
#include "functions.h"

#if defined(__x86_64__)
#include <cpuid.h>

namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
}

/* F16C is asked of the processor itself, because not every compiler's list of names has it. */
bool has_avx2() {
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
         (c & bit_F16C);
}

}  // namespace

const vk_functions *functions_of(int32_t instruction_set) {
  switch (instruction_set) {
    case VK_AVX512: return has_avx512() ? &kAvx512 : nullptr;
    case VK_AVX2: return has_avx2() ? &kAvx2 : nullptr;
    default: return nullptr;
  }
}
#else
const vk_functions *functions_of(int32_t) { return nullptr; }
#endif

/* Whether this processor has what the kernels use of an instruction set. */
VK_API int32_t vk_is_supported(int32_t instruction_set) { return functions_of(instruction_set) != nullptr; }

/* At least one layer after the other; x [m, hidden] in place. */
VK_API int32_t vk_layers_run(const vk_layer *layers, int64_t count, const vk_step *step, void *x) {
  return pool_functions(step->pool)->layers(layers, count, step, x);
}

/* out [m, H, D]: what queries see; qkv [m, H + 2K, D], whose keys and values are put into the cache. */
VK_API int32_t vk_attend_run(const vk_attention *layer, const vk_step *step, void *qkv, void *out) {
  return pool_functions(step->pool)->attend(layer, step, qkv, out);
}

/* out [m, n] of x [m, k]. */
VK_API int32_t vk_linear_run(vk_pool *pool, const vk_linear *linear, int64_t type, const void *x, int64_t m,
                             void *out) {
  return pool_functions(pool)->linear(pool, linear, type, x, m, out);
}

/* out [m, k] of x [m, k]. */
VK_API void vk_norm_run(vk_pool *pool, const void *weight, float eps, int64_t type, const void *x, int64_t m, int64_t k,
                        void *out) {
  pool_functions(pool)->norm(pool, weight, eps, type, x, m, k, out);
}

/* The greatest number of each row [n], and the first place that has it; of a row with NaN, NaN and a place of one. */
VK_API void vk_highest_run(vk_pool *pool, int64_t type, const void *rows, int64_t m, int64_t n, float *best,
                           int64_t *at) {
  pool_functions(pool)->highest(pool, type, rows, m, n, best, at);
}

/* out [m, k]: rows `ids` of a table, each below its number of rows. */
VK_API void vk_embed_run(vk_pool *pool, const vk_linear *table, int64_t type, const int64_t *ids, int64_t m,
                         void *out) {
  pool_functions(pool)->embed(table, type, ids, m, out);
}
