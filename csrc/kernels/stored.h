/* Products with weight rows that may be stored in quantised blocks: the values are those that a load would expand, and
 * the products are added in the same order.
 */
#ifndef VLLM_KERNELS_STORED_H
#define VLLM_KERNELS_STORED_H
#include "task_rows.h"

namespace {

/* Expands whole blocks of type Q, a group at a time. */
template <class Q, class T>
struct Expanding {
  const uint8_t *block;
  typename T::Element *out;
  typename Q::Scales *scales;
  int64_t j;

  VK_INLINE void next() {
    if (Q::kGroups == 1 || j == 0) {
      ask_ahead<Q>(block);
      *scales = typename Q::Scales(block);
    }
    Q::template group<T>(block, *scales, j, out);
    out += kGroup;
    if (Q::kGroups > 1 && ++j < Q::kGroups) return;
    j = 0;
    block += Q::kBytes;
  }
};

/* sums[i] = the lanewise products of x row i and a row of k elements in whole blocks of type Q. */
template <class Q, class T, int M>
VK_INLINE void multiply_blocks(const typename T::Element *x, const uint8_t *block, int64_t k, Vec sums[M]) {
  using D = Dot<T>;
  Vec acc[M];
  for (int i = 0; i < M; i++) acc[i] = zero();
  for (int64_t at = 0; at < k; block += Q::kBytes) {
    ask_ahead<Q>(block);
    typename Q::Scales scales(block);
#pragma GCC unroll 8
    for (int64_t j = 0; j < Q::kGroups; j++) {
      alignas(64) typename T::Element values[kGroup];
      Q::template group<T>(block, scales, j, values);
      for (int64_t v = 0; v < kGroup; v += D::kStep, at += D::kStep)
        for (int i = 0; i < M; i++) acc[i] = D::add(acc[i], D::get(x + i * k + at), D::get(values + v));
    }
  }
  for (int i = 0; i < M; i++) sums[i] = acc[i];
}

/* out[i * kPanel + j] = x row i . row j for few token rows and a panel of up to 16 rows of quantised blocks, whose
 * values need not leave the registers. */
template <class Q, class T, int M>
VK_APART void multiply_stored(const typename T::Element *x, const char *from, int64_t rows, int64_t k, float *out) {
  int64_t nbytes = row_bytes<Q>(k);
  for (int64_t j = 0; j < kPanel; j += kLanes) {
    Vec sums[kLanes][M], column[kLanes];
    for (int64_t row = 0; row < kLanes; row++) {
      int64_t there = j + row < rows ? j + row : rows - 1;
      multiply_blocks<Q, T, M>(x, reinterpret_cast<const uint8_t *>(from + there * nbytes), k, sums[row]);
    }
    for (int i = 0; i < M; i++) {
      for (int64_t row = 0; row < kLanes; row++) column[row] = sums[row][i];
      store<F32>(out + i * kPanel + j, lane_sums(column));
    }
  }
}

/* `count` rows of a task, a panel, times up to three token rows; false if they are not quantised, or in two parts. */
template <class T>
inline bool multiply_few(const typename T::Element *x, int64_t m, int64_t k, int64_t count, TaskRows<T> *rows,
                         float *out) {
  if (!kExpandsBeside || m > 3) return false;
  Piece<T> piece = rows->next(count);
  if (piece.rows < count) return false;
  return with_blocks(piece.type, [&](auto q) {
    using Q = decltype(q);
    if (m == 1) multiply_stored<Q, T, 1>(x, piece.from, piece.rows, k, out);
    else if (m == 2) multiply_stored<Q, T, 2>(x, piece.from, piece.rows, k, out);
    else multiply_stored<Q, T, 3>(x, piece.from, piece.rows, k, out);
    rows->advance(piece);
  });
}

/* out[i * kPanel + j] = x row i . row `at` + j of a task, for m token rows and a panel of weight rows. The panel that
 * follows is asked for meanwhile, or expanded: what that takes is computed beside the products, which leave other units
 * of the processor idle. */
template <class T>
inline void multiply_panel(const typename T::Element *x, int64_t m, int64_t k, int64_t at, TaskRows<T> *rows,
                           float *out) {
  int64_t tiles = m / kTile, i = tiles * kTile;
  rows->prepare(at + kPanel);
  const typename T::Element *w[kPanel];
  rows->find(at, w);
  Piece<T> piece = rows->next(kPanel);
  bool is_expanded = kExpandsBeside && tiles > 0 && piece.rows == kPanel && with_blocks(piece.type, [&](auto q) {
    using Q = decltype(q);
    const uint8_t *block = reinterpret_cast<const uint8_t *>(piece.from);
    typename Q::Scales scales(block);
    Expanding<Q, T> expanding = {block, piece.to, &scales, 0};
    multiply_spread<T, kRows<kTile> * Dot<T>::kStep / kGroup>(x, tiles, w, k, expanding, out);
  });
  const char *line = piece.type == T::kType ? piece.from : nullptr;
  if (is_expanded || line) rows->advance(piece);
  if (tiles > 0 && !is_expanded) {
    Nothing nothing;
    if (line) multiply_spread<T, kLines>(x, tiles, w, k, Asking{line}, out);
    else multiply_tiles<T>(x, tiles, w, k, &nothing, out);
    line = nullptr;
  }
  for (; i + 2 <= m; i += 2, line = nullptr) multiply_some<T, 2>(x + i * k, w, k, line, out + i * kPanel);
  for (; i < m; i++, line = nullptr) multiply_some<T, 1>(x + i * k, w, k, line, out + i * kPanel);
}

}  // namespace
#endif
