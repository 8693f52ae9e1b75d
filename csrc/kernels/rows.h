/* Rows of numbers: dot products of weight rows with token rows, and what is done to a token row beforehand. */
#ifndef VLLM_KERNELS_ROWS_H
#define VLLM_KERNELS_ROWS_H
#include "simd.h"

namespace {

/* Weight rows that are multiplied together. */
constexpr int64_t kPanel = 16;
/* Bytes of a cache line. */
constexpr int64_t kLine = 64;
/* Lines that four weight rows take in a step, at most. */
constexpr int kLines = int(4 * kLanes * sizeof(float) / kLine);
/* Weight rows of a step for M token rows: fewer than eight sums would wait for one another. */
template <int M>
constexpr int kRows = M == 1 ? 8 : 4;

/* sums[i * R + j] = the lanewise products of x row i and w row j, for M token rows and R weight rows of k elements.
 * At each step A lines for every four of them are asked for from `ahead` on, which is moved. */
template <class T, int M, int R, int A>
inline __attribute__((always_inline)) void accumulate(const typename T::Element *const x[M],
                                                      const typename T::Element *const w[R], int64_t k,
                                                      const char **ahead, Vec *sums) {
  using D = Dot<T>;
  Vec acc[M * R];
  const char *line = *ahead;
  for (int i = 0; i < M * R; i++) acc[i] = zero();
  int64_t at = 0;
  for (; at + D::kStep <= k; at += D::kStep) {
    typename D::Lanes lanes[M];
    for (int i = 0; i < M; i++) lanes[i] = D::get(x[i] + at);
    for (int a = 0; a < A * R / 4; a++) __builtin_prefetch(line + a * kLine, 0, 2);
    line += A * R / 4 * kLine;
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
  *ahead = line;
}

/* A panel of up to 16 weight rows; rows that are not there stand for the last one, and nobody reads their products. */
template <class T>
struct Panel {
  const typename T::Element *row[kPanel];
  int64_t k;
  const char *ahead; /* what is asked for while the panel is multiplied: the next one */

  Panel(const typename T::Element *weight, int64_t rows, int64_t columns, const char *next) : k(columns), ahead(next) {
    for (int64_t j = 0; j < kPanel; j++) row[j] = weight + (j < rows ? j : rows - 1) * columns;
  }
};

/* out[i * kPanel + j] = x row i . panel row j for M token rows. */
template <class T, int M, int A>
inline void multiply_panel(const typename T::Element *x, Panel<T> *panel, float *out) {
  const typename T::Element *rows[M];
  for (int i = 0; i < M; i++) rows[i] = x + i * panel->k;
  constexpr int R = kRows<M>;
  constexpr int kWide = kLanes / M; /* weight rows of one reduction */
  for (int64_t j = 0; j < kPanel; j += kWide) {
    Vec sums[kLanes];
    for (int64_t group = 0; group < kWide / R; group++)
      accumulate<T, M, R, A>(rows, panel->row + j + group * R, panel->k, &panel->ahead, sums + group * M * R);
    /* Lane (group * M + i) * R + column. */
    alignas(64) float lanes[kLanes];
    store<F32>(lanes, lane_sums(sums));
    for (int64_t group = 0; group < kWide / R; group++)
      for (int i = 0; i < M; i++)
        __builtin_memcpy(out + i * kPanel + j + group * R, lanes + (group * M + i) * R, R * sizeof(float));
  }
}

/* The same for the token rows of a whole tile, one of `tiles`: the next panel is asked for evenly. */
template <class T>
inline void multiply_tile(const typename T::Element *x, Panel<T> *panel, int64_t tile, int64_t tiles, float *out) {
  if (!panel->ahead || tile >= kLines) return multiply_panel<T, kTile, 0>(x, panel, out);
  if (tiles == 1) return multiply_panel<T, kTile, kLines>(x, panel, out);
  if (tiles == 2) return multiply_panel<T, kTile, kLines / 2>(x, panel, out);
  multiply_panel<T, kTile, 1>(x, panel, out);
}

/* out[i * kPanel + j] for m token rows. */
template <class T>
inline void multiply_rows(const typename T::Element *x, int64_t m, Panel<T> *panel, float *out) {
  int64_t i = 0;
  for (; i + kTile <= m; i += kTile)
    multiply_tile<T>(x + i * panel->k, panel, i / kTile, m / kTile, out + i * kPanel);
  for (; i + 2 <= m; i += 2) {
    if (panel->ahead && m < kTile) multiply_panel<T, 2, kLines>(x + i * panel->k, panel, out + i * kPanel);
    else multiply_panel<T, 2, 0>(x + i * panel->k, panel, out + i * kPanel);
  }
  for (; i < m; i++) {
    if (panel->ahead && m == 1) multiply_panel<T, 1, kLines>(x + i * panel->k, panel, out + i * kPanel);
    else multiply_panel<T, 1, 0>(x + i * panel->k, panel, out + i * kPanel);
  }
}

/* The place of the greatest number of a row, the first of equals, and that number; of a NaN when there is one. A row has at least one number. */
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
