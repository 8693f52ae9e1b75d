/* The CPU kernels of libvllm: what pyvllm/layers/kernels.py calls. Private; the public header is include/vllm.h.
 *
 * Every result is the same for a token alone and in any batch, for any number of threads, and for weights anywhere:
 * an output element is accumulated in an order that depends on nothing but its own row and the size of the model.
 */
#ifndef VLLM_KERNELS_H
#define VLLM_KERNELS_H
#include <stdint.h>

#define VK_API extern "C" __attribute__((visibility("default")))
/* What must stay with its caller's registers, and what deserves registers of its own: where a compiler decides
 * otherwise, an inner loop keeps its sums in memory. */
#define VK_INLINE inline __attribute__((always_inline))
#define VK_APART __attribute__((noinline))

/* Element types, numbered as in GGUF (ggml_type). Activations are F32, F16 or BF16. */
enum vk_type {
  VK_F32 = 0, VK_F16 = 1, VK_Q4_0 = 2, VK_Q4_1 = 3, VK_Q5_0 = 6, VK_Q5_1 = 7, VK_Q8_0 = 8,
  VK_Q4_K = 12, VK_Q5_K = 13, VK_Q6_K = 14, VK_BF16 = 30
};

extern "C" {
#include "interface.h"
}

#endif
