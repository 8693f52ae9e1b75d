/* The key-value cache as the kernels keep it: chunks of 16 tokens in which each load brings what 16 lanes need.
 *
 * Keys:   [chunk][kv head][head_dim / P][16 tokens][P]
 * Values: [chunk][kv head][16 / P tokens][head_dim][P]
 * P is 2 for bfloat16, whose products are added in pairs, and 1 otherwise. A block of the scheduler is whole chunks.
 */
#ifndef VLLM_KERNELS_CACHE_H
#define VLLM_KERNELS_CACHE_H
#include "simd.h"

namespace {

constexpr int64_t kChunk = 16;

template <class T>
constexpr int64_t kPair = T::kType == VK_BF16 ? 2 : 1;

/* Chunk number of a sequence's position. */
inline int64_t chunk_of(const vk_step *step, const vk_span &span, int64_t position) {
  int64_t block = step->block_table[span.first_block + position / step->block_size];
  return (block * step->block_size + position % step->block_size) / kChunk;
}

template <class T>
inline typename T::Element *keys_of(const vk_attention *layer, const vk_step *step) {
  return reinterpret_cast<typename T::Element *>(step->keys + layer->layer * step->layer_bytes);
}

template <class T>
inline typename T::Element *values_of(const vk_attention *layer, const vk_step *step) {
  return reinterpret_cast<typename T::Element *>(step->values + layer->layer * step->layer_bytes);
}

/* Stores the key of one head: its elements lie apart, so that 16 keys stand side by side. */
template <class T>
inline void store_key(typename T::Element *chunk, int64_t lane, const typename T::Element *key, int64_t head_dim) {
  constexpr int64_t P = kPair<T>;
  for (int64_t d = 0; d < head_dim; d += P)
    for (int64_t i = 0; i < P; i++) chunk[(d * kChunk) + lane * P + i] = key[d + i];
}

/* Stores the value of one head. The last token of a step clears its partner's place: what is there is multiplied by
 * zero, and might be no number. */
template <class T>
inline void store_value(typename T::Element *chunk, int64_t lane, const typename T::Element *value, int64_t head_dim,
                        bool is_last) {
  constexpr int64_t P = kPair<T>;
  typename T::Element *pair = chunk + lane / P * P * head_dim;
  for (int64_t d = 0; d < head_dim; d++) pair[d * P + lane % P] = value[d];
  if (P == 2 && is_last && lane % 2 == 0)
    for (int64_t d = 0; d < head_dim; d++) pair[d * P + 1] = 0;
}

}  // namespace
#endif
