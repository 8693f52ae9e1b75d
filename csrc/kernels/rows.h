/* Rows of numbers: dot products of weight rows with token rows, and what is done to a token row beforehand. */
#ifndef VLLM_KERNELS_ROWS_H
#define VLLM_KERNELS_ROWS_H
#include "simd.h"

namespace {

/* Weight rows that are multiplied together. */
constexpr int64_t kPanel = 16;
/* Weight rows of a task: enough that a task outlasts the taking of its ticket, few enough that all threads end
 * together, and what they write of a token is whole cache lines. */
constexpr int64_t kTaskRows = 2 * kPanel;
/* Bytes of a cache line. */
constexpr int64_t kLine = 64;
/* Lines that four weight rows take in a step, at most. */
constexpr int kLines = int(4 * kLanes * sizeof(float) / kLine);
/* Weight rows of a step for M token rows. */
template <int M>
constexpr int kRows = M == 1 ? kRowsOfOne : 4;

/* What is done while rows are multiplied: nothing, */
struct Nothing {
  VK_INLINE void step() {}
};

/* or N of something at each step. */
template <class What, int N>
struct Each {
  What what;
  VK_INLINE void step() {
    for (int i = 0; i < N; i++) what.next();
  }
};

/* Asks for cache lines, one after the other. */
struct Asking {
  const char *line;
  VK_INLINE void next() {
    __builtin_prefetch(line, 0, 2);
    line += kLine;
  }
};

/* sums[i * R + j] = the lanewise products of x row i and w row j, for M token rows and R weight rows of k elements. */
template <class T, int M, int R, class W>
VK_INLINE void accumulate(const typename T::Element *const x[M], const typename T::Element *const w[R], int64_t k,
                          W *meanwhile, Vec *sums) {
  using D = Dot<T>;
  Vec acc[M * R];
  W other = *meanwhile;
  for (int i = 0; i < M * R; i++) acc[i] = zero();
  int64_t at = 0;
  for (; at + D::kStep <= k; at += D::kStep) {
    typename D::Lanes lanes[M];
    for (int i = 0; i < M; i++) lanes[i] = D::get(x[i] + at);
    other.step();
    for (int j = 0; j < R; j++) {
      typename D::Lanes weight = D::get(w[j] + at);
      for (int i = 0; i < M; i++) acc[i * R + j] = D::add(acc[i * R + j], lanes[i], weight);
    }
  }
  if (at < k) {
    typename D::Lanes lanes[M];
    for (int i = 0; i < M; i++) lanes[i] = D::get(x[i] + at, k - at);
    for (int j = 0; j < R; j++) {
      typename D::Lanes weight = D::get(w[j] + at, k - at);
      for (int i = 0; i < M; i++) acc[i * R + j] = D::add(acc[i * R + j], lanes[i], weight);
    }
  }
  for (int i = 0; i < M * R; i++) sums[i] = acc[i];
  *meanwhile = other;
}

/* out[i * kPanel + j] = x row i . w row j for M token rows and a panel of weight rows. */
template <class T, int M, class W>
VK_INLINE void multiply(const typename T::Element *x, const typename T::Element *const *w, int64_t k, W *meanwhile,
                        float *out) {
  constexpr int R = kRows<M>;
  constexpr int kWide = kLanes / M; /* weight rows of one reduction */
  const typename T::Element *rows[M];
  for (int i = 0; i < M; i++) rows[i] = x + i * k;
  for (int64_t j = 0; j < kPanel; j += kWide) {
    Vec sums[kLanes];
    for (int group = 0; group < kWide / R; group++)
      accumulate<T, M, R>(rows, w + j + group * R, k, meanwhile, sums + group * M * R);
    /* Lane (group * M + i) * R + column. */
    alignas(64) float lanes[kLanes];
    store<F32>(lanes, lane_sums(sums));
    for (int group = 0; group < kWide / R; group++)
      for (int i = 0; i < M; i++)
        __builtin_memcpy(out + i * kPanel + j + group * R, lanes + (group * M + i) * R, R * sizeof(float));
  }
}

/* The same for tiles of kTile token rows. */
template <class T, class W>
VK_APART void multiply_tiles(const typename T::Element *x, int64_t tiles, const typename T::Element *const *w,
                             int64_t k, W *meanwhile, float *out) {
  for (int64_t tile = 0; tile < tiles; tile++)
    multiply<T, kTile>(x + tile * kTile * k, w, k, meanwhile, out + tile * kTile * kPanel);
}

/* The same, while something is done that takes one tile All times a step: spread over more tiles where there are. */
template <class T, int All, class What>
inline void multiply_spread(const typename T::Element *x, int64_t tiles, const typename T::Element *const *w, int64_t k,
                            What what, float *out) {
  Nothing nothing;
  Each<What, All> all = {what};
  Each<What, All / 2> half = {what};
  Each<What, 1> one = {what};
  int64_t busy = tiles == 1 ? 1 : tiles < All ? 2 : All;
  if (busy == 1) multiply_tiles<T>(x, 1, w, k, &all, out);
  else if (busy == 2) multiply_tiles<T>(x, 2, w, k, &half, out);
  else multiply_tiles<T>(x, busy, w, k, &one, out);
  multiply_tiles<T>(x + busy * kTile * k, tiles - busy, w, k, &nothing, out + busy * kTile * kPanel);
}

/* The same for M token rows, while the panel at `line`, if there is one, is asked for. */
template <class T, int M>
inline void multiply_some(const typename T::Element *x, const typename T::Element *const *w, int64_t k,
                          const char *line, float *out) {
  Nothing nothing;
  Each<Asking, kLines * kRows<M> / 4> asking = {{line}};
  if (line && kRows<M> > 1) multiply<T, M>(x, w, k, &asking, out);
  else multiply<T, M>(x, w, k, &nothing, out);
}

/* The place of the greatest number of a row, the first of equals, and that number; of a NaN when there is one. A row
 * has at least one number. */
template <class T>
inline int64_t highest_of_row(const typename T::Element *row, int64_t n, float *best) {
  constexpr int64_t kPiece = 256;
  float numbers[kPiece];
  int64_t found = 0;
  *best = -__builtin_inff();
  for (int64_t piece = 0; piece < n; piece += kPiece) {
    int64_t count = n - piece < kPiece ? n - piece : kPiece;
    for (int64_t at = 0; at < count; at += kLanes)
      store<F32>(numbers + at, load<T>(row + piece + at, count - at), count - at);
    for (int64_t at = 0; at < count; at++) {
      if (numbers[at] <= *best) continue; /* not so for a NaN */
      *best = numbers[at];
      found = piece + at;
      if (numbers[at] != numbers[at]) return found;
    }
  }
  return found;
}

/* out = x / sqrt(mean(x^2) + eps) * weight. Source: Zhang and Sennrich 2019, equation 4. */
template <class T>
inline void rms_norm_row(const typename T::Element *x, const typename T::Element *weight, float eps, int64_t k,
                         typename T::Element *out) {
  Vec sum = zero();
  for (int64_t at = 0; at < k; at += kLanes) {
    Vec value = load<T>(x + at, k - at);
    sum = multiply_add(value, value, sum);
  }
  Vec scale = broadcast(1.0f / __builtin_sqrtf(sum_of(sum) / float(k) + eps));
  for (int64_t at = 0; at < k; at += kLanes) {
    Vec value = load<T>(x + at, k - at) * scale;
    store<T>(out + at, value * load<T>(weight + at, k - at), k - at);
  }
}

/* out = silu(gate) * up. Source: Shazeer 2020 (SwiGLU). */
template <class T>
inline void silu_and_mul_row(const typename T::Element *gate, const typename T::Element *up, int64_t k,
                             typename T::Element *out) {
  for (int64_t at = 0; at < k; at += kLanes) {
    Vec g = load<T>(gate + at, k - at);
    Vec silu = g / (exponential(zero() - g) + broadcast(1.0f));
    store<T>(out + at, silu * load<T>(up + at, k - at), k - at);
  }
}

}  // namespace
#endif
