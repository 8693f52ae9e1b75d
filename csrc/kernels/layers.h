/* What Python calls, on one instruction set: simd.h says how it is chosen. */
#ifndef VLLM_KERNELS_LAYERS_H
#define VLLM_KERNELS_LAYERS_H
#include "simd.h"

#include "attention.h"
#include "experts.h"
#include "functions.h"
#include "linear.h"
#include "rotary.h"

namespace {

/* A piece of the pool's memory for `count` numbers. */
template <class T>
typename T::Element *piece_of(const vk_step *step, int piece, int64_t count) {
  using Element = typename T::Element;
  return static_cast<Element *>(pool_shared(step->pool, piece, size_t(count) * sizeof(Element)));
}

template <class T>
bool attention_layer(const vk_attention *layer, const vk_step *step, void *stream) {
  using Element = typename T::Element;
  Element *x = static_cast<Element *>(stream);
  int64_t m = step->m, mixed_size = layer->num_heads * layer->head_dim;
  Element *normed = piece_of<T>(step, POOL_NORMED, m * layer->qkv.k);
  Element *qkv = piece_of<T>(step, POOL_WIDE, m * layer->qkv.n);
  Element *mixed = piece_of<T>(step, POOL_MIXED, m * mixed_size);
  if (!normed || !qkv || !mixed) return false;
  normalise<T>(step->pool, layer->input_norm, layer->norm_eps, x, m, layer->qkv.k, normed);
  if (!project<T>(step->pool, &layer->qkv, normed, m, nullptr, qkv)) return false;
  rotate_all<T>(layer, step, qkv);
  return attend_all<T>(layer, step, qkv, mixed) && project<T>(step->pool, &layer->o, mixed, m, x, x);
}

template <class T>
bool attend_only(const vk_attention *layer, const vk_step *step, void *qkv, void *out) {
  using Element = typename T::Element;
  rotate_all<T>(layer, step, static_cast<Element *>(qkv));
  return attend_all<T>(layer, step, static_cast<Element *>(qkv), static_cast<Element *>(out));
}

template <class T>
bool mlp_layer(const vk_mlp *layer, const vk_step *step, void *stream) {
  using Element = typename T::Element;
  Element *x = static_cast<Element *>(stream);
  int64_t m = step->m, hidden = layer->gate_up.k, size = layer->down.k;
  Element *normed = piece_of<T>(step, POOL_NORMED, m * hidden);
  Element *gate_up = piece_of<T>(step, POOL_WIDE, m * 2 * size);
  Element *mixed = piece_of<T>(step, POOL_MIXED, m * size);
  if (!normed || !gate_up || !mixed) return false;
  normalise<T>(step->pool, layer->norm, layer->norm_eps, x, m, hidden, normed);
  if (!project<T>(step->pool, &layer->gate_up, normed, m, nullptr, gate_up)) return false;
  silu_and_mul<T>(step->pool, gate_up, m, size, mixed);
  return project<T>(step->pool, &layer->down, mixed, m, x, x);
}

template <class T>
bool moe_layer(const vk_moe *layer, const vk_step *step, void *stream) {
  using Element = typename T::Element;
  Element *x = static_cast<Element *>(stream);
  int64_t m = step->m, k = layer->router.k, num_routes = m * layer->top_k, size = layer->down.k;
  vk_pool *pool = step->pool;
  Element *normed = piece_of<T>(step, POOL_NORMED, m * k);
  Element *wide = piece_of<T>(step, POOL_WIDE, num_routes * 2 * size > m * layer->num_experts
                                                   ? num_routes * 2 * size
                                                   : m * layer->num_experts);
  Element *gathered = piece_of<T>(step, POOL_ROWS, num_routes * k);
  Element *mixed = piece_of<T>(step, POOL_MIXED, num_routes * size);
  Routing<T> routing = {layer, pool, wide, take_routes(pool, num_routes, layer->num_experts)};
  if (!normed || !wide || !gathered || !mixed || !routing.routes.expert) return false;
  normalise<T>(pool, layer->norm, layer->norm_eps, x, m, k, normed);
  if (!project<T>(pool, &layer->router, normed, m, nullptr, wide)) return false;
  if (!pool_reserve(pool, size_t(layer->num_experts + kLanes) * sizeof(float))) return false;
  pool_run(pool, route_token<T>, &routing, m, m * layer->num_experts * layer->top_k);
  const Routes &routes = routing.routes;
  gather_routes(routes, layer->num_experts);
  Rows<T> rows = {&routes, normed, gathered, k, layer->top_k};
  pool_run(pool, gather_token<T>, &rows, m, num_routes * k / 16);
  if (!project_routed<T>(pool, &layer->gate_up, layer->num_experts, routes.first, gathered, wide)) return false;
  silu_and_mul<T>(pool, wide, num_routes, size, mixed);
  if (!project_routed<T>(pool, &layer->down, layer->num_experts, routes.first, mixed, gathered)) return false;
  rows.tokens = x;
  pool_run(pool, sum_token<T>, &rows, m, num_routes * k / 8);
  return true;
}

template <class T>
bool decoder_layers(const vk_layer *layers, int64_t count, const vk_step *step, void *stream) {
  for (const vk_layer *layer = layers; layer < layers + count; layer++) {
    if (!attention_layer<T>(layer->attention, step, stream)) return false;
    if (layer->mlp ? !mlp_layer<T>(layer->mlp, step, stream) : !moe_layer<T>(layer->moe, step, stream)) return false;
  }
  return true;
}

template <class T>
bool linear_layer(vk_pool *pool, const vk_linear *linear, const void *x, int64_t m, void *out) {
  using Element = typename T::Element;
  return project<T>(pool, linear, static_cast<const Element *>(x), m, nullptr, static_cast<Element *>(out));
}

template <class T>
void norm_layer(vk_pool *pool, const void *weight, float eps, const void *x, int64_t m, int64_t k, void *out) {
  using Element = typename T::Element;
  normalise<T>(pool, weight, eps, static_cast<const Element *>(x), m, k, static_cast<Element *>(out));
}

template <class T>
struct Search {
  const typename T::Element *rows; /* [m, n] */
  int64_t n;
  float *best;
  int64_t *at;
};

template <class T>
void search_row(void *argument, int64_t row, int) {
  const Search<T> &job = *static_cast<const Search<T> *>(argument);
  job.at[row] = highest_of_row<T>(job.rows + row * job.n, job.n, job.best + row);
}

template <class T>
void search_rows(vk_pool *pool, const void *rows, int64_t m, int64_t n, float *best, int64_t *at) {
  Search<T> job = {static_cast<const typename T::Element *>(rows), n, best, at};
  pool_run(pool, search_row<T>, &job, m, m * n / 3);
}

template <class T>
void embed_rows(const vk_linear *table, const int64_t *ids, int64_t m, void *out) {
  auto *rows = static_cast<typename T::Element *>(out);
  for (int64_t token = 0; token < m; token++) {
    int64_t row = ids[token];
    const vk_part *part = table->parts;
    while (row >= part->num_rows) row -= part++->num_rows;
    dequantise<T>(part->type, row_at(*part, row, table->k), table->k, rows + token * table->k);
  }
}

#define BY_TYPE(type, call)          \
  switch (type) {                    \
    case VK_F32: return call(F32);   \
    case VK_F16: return call(F16);   \
    default: return call(BF16);      \
  }

int32_t run_layers(const vk_layer *layers, int64_t count, const vk_step *step, void *x) {
#define CALL(T) decoder_layers<T>(layers, count, step, x)
  BY_TYPE(layers->attention->type, CALL)
#undef CALL
}

int32_t run_attend(const vk_attention *layer, const vk_step *step, void *qkv, void *out) {
#define CALL(T) attend_only<T>(layer, step, qkv, out)
  BY_TYPE(layer->type, CALL)
#undef CALL
}

int32_t run_linear(vk_pool *pool, const vk_linear *linear, int64_t type, const void *x, int64_t m, void *out) {
#define CALL(T) linear_layer<T>(pool, linear, x, m, out)
  BY_TYPE(type, CALL)
#undef CALL
}

void run_norm(vk_pool *pool, const void *weight, float eps, int64_t type, const void *x, int64_t m, int64_t k,
              void *out) {
#define CALL(T) norm_layer<T>(pool, weight, eps, x, m, k, out)
  BY_TYPE(type, CALL)
#undef CALL
}

void run_highest(vk_pool *pool, int64_t type, const void *rows, int64_t m, int64_t n, float *best, int64_t *at) {
#define CALL(T) search_rows<T>(pool, rows, m, n, best, at)
  BY_TYPE(type, CALL)
#undef CALL
}

void run_embed(const vk_linear *table, int64_t type, const int64_t *ids, int64_t m, void *out) {
#define CALL(T) embed_rows<T>(table, ids, m, out)
  BY_TYPE(type, CALL)
#undef CALL
}

#undef BY_TYPE

constexpr vk_functions kFunctions = {run_layers, run_attend, run_linear, run_norm, run_highest, run_embed};

}  // namespace
#endif
