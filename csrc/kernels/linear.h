/* Projections: every weight row is read once for all tokens of the step. */
#ifndef VLLM_KERNELS_LINEAR_H
#define VLLM_KERNELS_LINEAR_H
#include "stored.h"

namespace {

/* Tokens of a block: what is written for them stays in the first cache until its lines are full. */
constexpr int64_t kTokens = 64;

template <class T>
struct Projection {
  using Element = typename T::Element;
  const vk_linear *linear;
  vk_pool *pool;
  const Element *x;        /* [m, k] */
  const Element *residual; /* [m, n] or NULL; may be `out` */
  Element *out;            /* [m, n] */
  int64_t m;
};

/* Adds bias and residual to a block of products and writes it in the activation type. */
template <class T>
inline void finish(const Projection<T> &job, const float *products, int64_t token, int64_t tokens, int64_t row,
                   int64_t rows) {
  const auto *bias = static_cast<const typename T::Element *>(job.linear->bias);
  for (int64_t i = 0; i < tokens; i++) {
    int64_t at = (token + i) * job.linear->n + row;
    for (int64_t j = 0; j < kPanel && j < rows; j += kLanes) {
      Vec value = load<F32>(products + i * kPanel + j);
      if (bias) value = value + load<T>(bias + row + j, rows - j);
      if (job.residual) value = value + load<T>(job.residual + at + j, rows - j);
      store<T>(job.out + at + j, value, rows - j);
    }
  }
}

/* Task number `task` of a projection, which is the job's task number `of_job`. */
template <class T>
inline void project_rows(const Projection<T> &job, int64_t task, int64_t of_job, int worker) {
  int64_t k = job.linear->k;
  alignas(64) float products[kTokens * kPanel];
  TaskRows<T> rows(job.linear, job.pool, worker, task, of_job);
  for (int64_t token = 0; token < job.m; token += kTokens) {
    int64_t tokens = job.m - token < kTokens ? job.m - token : kTokens;
    for (int64_t at = 0; at < rows.size(); at += kPanel) {
      int64_t count = rows.size() - at < kPanel ? rows.size() - at : kPanel;
      const typename T::Element *x = job.x + token * k;
      if (!multiply_few<T>(x, job.m, k, count, &rows, products)) multiply_panel<T>(x, tokens, k, at, &rows, products);
      finish<T>(job, products, token, tokens, rows.first() + at, count);
    }
  }
}

template <class T>
void project_task(void *argument, int64_t task, int worker) {
  project_rows<T>(*static_cast<const Projection<T> *>(argument), task, task, worker);
}

/* About 8 elements a nanosecond are read from memory, and 100 multiplied. */
inline int64_t projection_nanoseconds(int64_t elements, int64_t m) { return elements / 8 + elements * m / 100; }

/* Lets waiting threads ask for a weight that is in one part. */
inline void expect(vk_pool *pool, const vk_linear *linear) {
  if (!linear || linear->num_parts != 1) return;
  const vk_part &part = linear->parts[0];
  int64_t task_bytes = kTaskRows * row_bytes(part.type, linear->k);
  pool_expect(pool, static_cast<const char *>(part.rows), task_bytes, tasks_of(linear->n));
}

/* out [m, n] = x [m, k] W^T + bias + residual; false when there is no memory. */
template <class T>
bool project(vk_pool *pool, const vk_linear *linear, const typename T::Element *x, int64_t m,
             const typename T::Element *residual, typename T::Element *out) {
  if (!reserve_rows<T>(pool, linear)) return false;
  Projection<T> job = {linear, pool, x, residual, out, m};
  expect(pool, linear->next);
  pool_run(pool, project_task<T>, &job, tasks_of(linear->n), projection_nanoseconds(linear->n * linear->k, m));
  return true;
}

/* Rows of tokens that are prepared for a projection. */
template <class T>
struct Preparation {
  const typename T::Element *x;
  const typename T::Element *weight; /* of the norm; NULL: silu(gate) * up */
  typename T::Element *out;          /* [m, k] */
  int64_t k;
  float eps;
};

template <class T>
void prepare_row(void *argument, int64_t token, int) {
  const Preparation<T> &job = *static_cast<const Preparation<T> *>(argument);
  typename T::Element *out = job.out + token * job.k;
  if (job.weight) return rms_norm_row<T>(job.x + token * job.k, job.weight, job.eps, job.k, out);
  const typename T::Element *gate = job.x + token * 2 * job.k;
  silu_and_mul_row<T>(gate, gate + job.k, job.k, out);
}

/* out [m, k] = norm of x [m, k]. */
template <class T>
void normalise(vk_pool *pool, const void *weight, float eps, const typename T::Element *x, int64_t m, int64_t k,
               typename T::Element *out) {
  Preparation<T> job = {x, static_cast<const typename T::Element *>(weight), out, k, eps};
  pool_run(pool, prepare_row<T>, &job, m, m * k / 4);
}

/* out [m, k] = silu(x[:, :k]) * x[:, k:] of x [m, 2k]. */
template <class T>
void silu_and_mul(vk_pool *pool, const typename T::Element *x, int64_t m, int64_t k, typename T::Element *out) {
  Preparation<T> job = {x, nullptr, out, k, 0};
  pool_run(pool, prepare_row<T>, &job, m, m * k / 2);
}

}  // namespace
#endif
