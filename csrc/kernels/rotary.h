/* What is done to a token's heads before attention: normalised, rotated, and its key and value put into the cache. */
#ifndef VLLM_KERNELS_ROTARY_H
#define VLLM_KERNELS_ROTARY_H
#include "cache.h"
#include "pool.h"
#include "rows.h"

namespace {

/* Rotates one head in place; dimension i is paired with i + D/2. Source: Su et al. 2021, in Hugging Face's layout. */
template <class T>
inline void rotate(typename T::Element *head, const float *cos, const float *sin, int64_t head_dim) {
  int64_t half = head_dim / 2;
  for (int64_t d = 0; d < half; d += kLanes) {
    Vec a = load<T>(head + d, half - d), b = load<T>(head + half + d, half - d);
    Vec c = load<F32>(cos + d, half - d), s = load<F32>(sin + d, half - d);
    store<T>(head + d, multiply_subtract(a, c, b * s), half - d);
    store<T>(head + half + d, multiply_add(b, c, a * s), half - d);
  }
}

/* Tokens of a task. */
constexpr int64_t kRotated = 16;

template <class T>
struct Rotation {
  const vk_attention *layer;
  const vk_step *step;
  typename T::Element *qkv; /* [m, H + 2K, D], queries and keys rotated in place */
};

template <class T>
inline void cache_token(const Rotation<T> &job, const vk_span &span, int64_t token, const typename T::Element *keys) {
  const vk_attention *layer = job.layer;
  int64_t D = layer->head_dim, K = layer->num_kv_heads, position = span.first_position + token - span.start;
  int64_t chunk = chunk_of(job.step, span, position), lane = position % kChunk;
  for (int64_t head = 0; head < K; head++) {
    int64_t at = (chunk * K + head) * D * kChunk;
    store_key<T>(keys_of<T>(layer, job.step) + at, lane, keys + head * D, D);
    store_value<T>(values_of<T>(layer, job.step) + at, lane, keys + (K + head) * D, D, token + 1 == span.end);
  }
}

/* Normalises and rotates the queries and keys of a token. */
template <class T>
inline void rotate_token(const Rotation<T> &job, int64_t token, typename T::Element *heads) {
  const vk_attention *layer = job.layer;
  int64_t D = layer->head_dim, H = layer->num_heads, K = layer->num_kv_heads;
  const float *cos = job.step->cos + token * (D / 2), *sin = job.step->sin + token * (D / 2);
  for (int64_t head = 0; head < H + K; head++) {
    const void *norm = head < H ? layer->q_norm : layer->k_norm;
    if (norm)
      rms_norm_row<T>(heads + head * D, static_cast<const typename T::Element *>(norm), layer->norm_eps, D,
                      heads + head * D);
    rotate<T>(heads + head * D, cos, sin, D);
  }
}

template <class T>
inline void rotate_piece(const Rotation<T> &job, const vk_span &span, int64_t first, int64_t last) {
  const vk_attention *layer = job.layer;
  int64_t D = layer->head_dim, H = layer->num_heads, K = layer->num_kv_heads;
  for (int64_t token = first; token < last; token++) {
    typename T::Element *heads = job.qkv + token * (H + 2 * K) * D;
    if (job.step->cos) rotate_token<T>(job, token, heads);
    cache_token<T>(job, span, token, heads + H * D);
  }
}

template <class T>
void rotate_tokens(void *argument, int64_t number, int) {
  const Rotation<T> &job = *static_cast<const Rotation<T> *>(argument);
  int64_t pieces = (job.step->m + kRotated - 1) / kRotated;
  int64_t first = job.step->m * number / pieces, last = job.step->m * (number + 1) / pieces;
  for (int64_t at = 0; at < job.step->num_spans; at++) {
    const vk_span &span = job.step->spans[at];
    int64_t from = span.start > first ? span.start : first, to = span.end < last ? span.end : last;
    if (from < to) rotate_piece<T>(job, span, from, to);
  }
}

/* Normalises (where the model does) and rotates the heads of a step, and stores keys and values. */
template <class T>
void rotate_all(const vk_attention *layer, const vk_step *step, typename T::Element *qkv) {
  Rotation<T> job = {layer, step, qkv};
  int64_t numbers = step->m * (layer->num_heads + 2 * layer->num_kv_heads) * layer->head_dim;
  pool_run(step->pool, rotate_tokens<T>, &job, (step->m + kRotated - 1) / kRotated, numbers / 2);
}

}  // namespace
#endif
