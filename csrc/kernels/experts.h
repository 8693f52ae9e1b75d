/* A mixture of experts: tokens are gathered by expert, so that the rows of a routed expert are read once and those of
 * the others never. Routing, grouping and summing leave each token's order of addition as it is alone.
 */
#ifndef VLLM_KERNELS_EXPERTS_H
#define VLLM_KERNELS_EXPERTS_H
#include "linear.h"

namespace {

/* Where the tokens of a step go. A route is one of a token's top_k choices: number token * top_k + rank. */
struct Routes {
  int64_t num_routes;
  int32_t *expert; /* of each route */
  float *weight;   /* of each route */
  int32_t *row;    /* of each route, among the rows that are gathered by expert */
  int32_t *first;  /* [num_experts + 1]: first gathered row of each expert */
};

inline Routes take_routes(vk_pool *pool, int64_t num_routes, int64_t num_experts) {
  auto *words = static_cast<int32_t *>(pool_shared(pool, POOL_ROUTES, size_t(3 * num_routes + num_experts + 1) * 4));
  if (!words) return {};
  return {num_routes, words, reinterpret_cast<float *>(words + num_routes), words + 2 * num_routes,
          words + 3 * num_routes};
}

/* Probabilities [count, rounded up to whole vectors] of the router's scores: softmax in float32 over all experts. */
template <class T>
inline void softmax_row(const typename T::Element *scores, int64_t count, float *out) {
  Vec top = broadcast(-3e38f), sum = zero();
  for (int64_t at = 0; at < count; at += kLanes)
    top = select(first_lanes(count - at), greater(top, load<T>(scores + at, count - at)), top);
  Vec greatest = broadcast(greatest_of(top));
  for (int64_t at = 0; at < count; at += kLanes) {
    Vec value = exponential(load<T>(scores + at, count - at) - greatest);
    value = select(first_lanes(count - at), value, zero());
    store<F32>(out + at, value);
    sum = sum + value;
  }
  Vec total = broadcast(sum_of(sum));
  for (int64_t at = 0; at < count; at += kLanes) store<F32>(out + at, load<F32>(out + at) / total);
}

template <class T>
struct Routing {
  const vk_moe *layer;
  vk_pool *pool;
  const typename T::Element *scores; /* [m, num_experts] */
  Routes routes;
};

/* Chooses a token's experts, the likeliest first, the lower number before its equal. */
template <class T>
void route_token(void *argument, int64_t token, int worker) {
  const Routing<T> &job = *static_cast<const Routing<T> *>(argument);
  int64_t E = job.layer->num_experts, k = job.layer->top_k;
  auto *likely = static_cast<float *>(pool_scratch(job.pool, worker));
  softmax_row<T>(job.scores + token * E, E, likely);
  float total = 0;
  for (int64_t rank = 0; rank < k; rank++) {
    int64_t best = 0;
    for (int64_t expert = 1; expert < E; expert++)
      if (likely[expert] > likely[best]) best = expert;
    job.routes.expert[token * k + rank] = int32_t(best);
    job.routes.weight[token * k + rank] = likely[best];
    total += likely[best];
    likely[best] = -1;
  }
  if (!job.layer->is_normalised) return;
  for (int64_t rank = 0; rank < k; rank++) job.routes.weight[token * k + rank] /= total;
}

/* Sorts the routes by expert, keeping the order of tokens within one. */
inline void gather_routes(const Routes &routes, int64_t num_experts) {
  int32_t *first = routes.first;
  for (int64_t expert = 0; expert <= num_experts; expert++) first[expert] = 0;
  for (int64_t route = 0; route < routes.num_routes; route++) first[routes.expert[route] + 1]++;
  for (int64_t expert = 0; expert < num_experts; expert++) first[expert + 1] += first[expert];
  for (int64_t route = 0; route < routes.num_routes; route++) routes.row[route] = first[routes.expert[route]]++;
  for (int64_t expert = num_experts; expert > 0; expert--) first[expert] = first[expert - 1];
  first[0] = 0;
}

/* One projection of every routed expert. */
template <class T>
struct Grouped {
  using Element = typename T::Element;
  vk_pool *pool;
  const vk_linear *linears; /* of the routed experts */
  const int32_t *rows;      /* for each of them: first gathered row, and how many */
  const Element *x;
  Element *out;
  int64_t tasks_per_expert;
};

template <class T>
void project_expert(void *argument, int64_t task, int worker) {
  const Grouped<T> &job = *static_cast<const Grouped<T> *>(argument);
  int64_t number = task / job.tasks_per_expert, first = job.rows[2 * number];
  const vk_linear *linear = job.linears + number;
  Projection<T> one = {linear,  job.pool, job.x + first * linear->k, nullptr, job.out + first * linear->n,
                       job.rows[2 * number + 1]};
  project_rows<T>(one, task % job.tasks_per_expert, task, worker);
}

/* out [num_routes, n] = each gathered row of x [num_routes, k] times its expert's rows of `stack`; false: no memory. */
template <class T>
bool project_routed(vk_pool *pool, const vk_linear *stack, int64_t num_experts, const int32_t *first,
                    const typename T::Element *x, typename T::Element *out) {
  size_t nbytes = size_t(num_experts) * (sizeof(vk_linear) + 2 * sizeof(int32_t));
  auto *linears = static_cast<vk_linear *>(pool_shared(pool, POOL_TASKS, nbytes));
  if (!linears || !reserve_rows<T>(pool, stack)) return false;
  auto *rows = reinterpret_cast<int32_t *>(linears + num_experts);
  int64_t n = stack->n / num_experts, count = 0;
  for (int64_t expert = 0; expert < num_experts; expert++) {
    if (first[expert] == first[expert + 1]) continue;
    linears[count] = *stack;
    linears[count].n = linears[count].parts[0].num_rows = n;
    linears[count].parts[0].rows = row_at(stack->parts[0], expert * n, stack->k);
    rows[2 * count] = first[expert];
    rows[2 * count + 1] = first[expert + 1] - first[expert];
    count++;
  }
  int64_t tasks = tasks_of(n);
  expect(pool, stack->next);
  Grouped<T> job = {pool, linears, rows, x, out, tasks};
  pool_run(pool, project_expert<T>, &job, count * tasks, projection_nanoseconds(count * n * stack->k, 1));
  return true;
}

/* The rows of tokens and of routes. */
template <class T>
struct Rows {
  const Routes *routes;
  typename T::Element *tokens; /* [m, k] */
  typename T::Element *gathered; /* [num_routes, k] */
  int64_t k, top_k;
};

template <class T>
void gather_token(void *argument, int64_t token, int) {
  const Rows<T> &job = *static_cast<const Rows<T> *>(argument);
  for (int64_t route = token * job.top_k; route < (token + 1) * job.top_k; route++)
    __builtin_memcpy(job.gathered + job.routes->row[route] * job.k, job.tokens + token * job.k,
                     size_t(job.k) * sizeof(typename T::Element));
}

/* Adds a token's experts to it, weighted, in the order of their ranks. */
template <class T>
void sum_token(void *argument, int64_t token, int) {
  const Rows<T> &job = *static_cast<const Rows<T> *>(argument);
  for (int64_t at = 0; at < job.k; at += kLanes) {
    Vec sum = zero();
    for (int64_t route = token * job.top_k; route < (token + 1) * job.top_k; route++) {
      Vec value = load<T>(job.gathered + job.routes->row[route] * job.k + at, job.k - at);
      sum = multiply_add(value, broadcast(job.routes->weight[route]), sum);
    }
    typename T::Element *out = job.tokens + token * job.k + at;
    store<T>(out, load<T>(out, job.k - at) + sum, job.k - at);
  }
}

}  // namespace
#endif
