/* Stored rows times a single token: a block is multiplied as soon as it is expanded, so that its values need not leave
 * the registers. The products are added in the order in which those of an expanded row are.
 */
#ifndef VLLM_KERNELS_STORED_H
#define VLLM_KERNELS_STORED_H
#include "dequantise.h"
#include "rows.h"

namespace {

/* The lanewise products of x and a row of k elements in whole blocks of type Q. */
template <class Q, class T>
inline Vec multiply_blocks(const typename T::Element *x, const uint8_t *block, int64_t k) {
  using D = Dot<T>;
  Vec sum = zero();
  for (int64_t at = 0; at < k; at += Q::kElements, block += Q::kBytes) {
    alignas(64) typename T::Element values[Q::kElements];
    ask_ahead<Q>(block);
    Q::template expand<T>(block, values);
    for (int64_t i = 0; i < Q::kElements; i += D::kStep) sum = D::add(sum, D::get(x + at + i), D::get(values + i));
  }
  return sum;
}

/* out[j] = x . row j for a panel of up to 16 rows; rows that are not there stand for the last one. */
template <class Q, class T>
inline void multiply_stored(const typename T::Element *x, const char *from, int64_t rows, int64_t k, float *out) {
  const uint8_t *blocks = reinterpret_cast<const uint8_t *>(from);
  for (int64_t j = 0; j < kPanel; j += kLanes) {
    Vec sums[kLanes];
    for (int64_t i = 0; i < kLanes; i++) {
      int64_t row = j + i < rows ? j + i : rows - 1;
      sums[i] = multiply_blocks<Q, T>(x, blocks + row * (k / Q::kElements) * Q::kBytes, k);
    }
    store<F32>(out + j, lane_sums(sums));
  }
}

/* The same for rows from `row` on of a weight; false where they are not in one part, or not quantised. */
template <class T>
inline bool multiply_stored_rows(const vk_linear *linear, const typename T::Element *x, int64_t row, int64_t rows,
                                 float *out) {
  const vk_part *part = linear->parts;
  while (row >= part->num_rows) row -= part++->num_rows;
  if (row + rows > part->num_rows) return false;
  const char *from = row_at(*part, row, linear->k);
  switch (part->type) {
    case VK_Q4_0: multiply_stored<Q4_0, T>(x, from, rows, linear->k, out); return true;
    case VK_Q4_1: multiply_stored<Q4_1, T>(x, from, rows, linear->k, out); return true;
    case VK_Q5_0: multiply_stored<Q5_0, T>(x, from, rows, linear->k, out); return true;
    case VK_Q5_1: multiply_stored<Q5_1, T>(x, from, rows, linear->k, out); return true;
    case VK_Q8_0: multiply_stored<Q8_0, T>(x, from, rows, linear->k, out); return true;
    case VK_Q4_K: multiply_stored<Q4_K, T>(x, from, rows, linear->k, out); return true;
    case VK_Q5_K: multiply_stored<Q5_K, T>(x, from, rows, linear->k, out); return true;
    case VK_Q6_K: multiply_stored<Q6_K, T>(x, from, rows, linear->k, out); return true;
    default: return false;
  }
}

}  // namespace
#endif
