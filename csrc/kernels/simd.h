/* The vector vocabulary of the kernels, so that each algorithm is written once for all instruction sets.
 *
 * VLLM_KERNELS_SIMD names the header of the instruction set that is compiled for. It defines
 *   Vec                    kLanes float32 numbers; + - * / work on them
 *   Mask                   what is chosen of a Vec's lanes; & ~ work on it, and Mask{} chooses none
 *   zero, broadcast, steps                  the same number on every lane; 0, 1, 2, ...
 *   load<T>, store<T>, rounded<T>           lanes from and to the activation type T, all or the first `count`
 *   first_lanes, select                     a mask of lanes; its lanes of one vector, the others of another
 *   multiply_add, multiply_subtract, subtract_product      a * b + c, a * b - c, c - a * b, rounded once
 *   greater, lesser        of two numbers on every lane; the second where one is no number
 *   nearest, times_two_to  the nearest integer; y * 2^n for integers n of which 2^n is a normal number
 *   sum_of, greatest_of    of all lanes
 *   lane_sums              lane i of the result is the sum of the lanes of v[i], added in the same order for every i
 *   spread<T>              one load's worth of Dot<T> for every lane: two bfloat16 numbers, or one of another type
 *   Dot<BF16>, write_signed, write_values, Bits, bits_at, bits_of, with_fifth       see below and quantised.h
 */
#ifndef VLLM_KERNELS_SIMD_H
#define VLLM_KERNELS_SIMD_H
#if defined(__GNUC__) && !defined(__clang__)
/* GCC 12's own header starts results that are not looked at with what it then warns of. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#include <stdint.h>
#include "kernels.h"

namespace {

struct F32 {
  using Element = float;
  static constexpr int kType = VK_F32;
};
struct F16 {
  using Element = uint16_t;
  static constexpr int kType = VK_F16;
};
struct BF16 {
  using Element = uint16_t;
  static constexpr int kType = VK_BF16;
};

/* Products of what one load of a row gives, added to an accumulator: an element for every lane, or two of bfloat16. */
template <class T>
struct Dot;

}  // namespace

#include VLLM_KERNELS_SIMD

namespace {

/* Four times so many accumulators, and what is multiplied into them, stay in registers. */
constexpr int kTile = kLanes / 4;

template <class T>
struct Dot {
  static constexpr int64_t kStep = kLanes;
  using Lanes = Vec;
  static Lanes get(const typename T::Element *row) { return load<T>(row); }
  static Lanes get(const typename T::Element *row, int64_t left) { return load<T>(row, left); }
  static Vec add(Vec sum, Lanes x, Lanes w) { return multiply_add(x, w, sum); }
};

/* e^x with the error of a float32 polynomial, the same on every lane; e^0 is 1. Source: Cody and Waite range reduction
 * and the degree-5 minimax polynomial of the Cephes library (expf). */
inline Vec exponential(Vec x) {
  x = greater(lesser(x, broadcast(88.0f)), broadcast(-87.0f));
  Vec n = nearest(x * broadcast(1.44269504f));
  x = subtract_product(n, broadcast(0.693359375f), x);
  x = subtract_product(n, broadcast(-2.12194440e-4f), x);
  Vec y = broadcast(1.9875691500e-4f);
  y = multiply_add(y, x, broadcast(1.3981999507e-3f));
  y = multiply_add(y, x, broadcast(8.3334519073e-3f));
  y = multiply_add(y, x, broadcast(4.1665795894e-2f));
  y = multiply_add(y, x, broadcast(1.6666665459e-1f));
  y = multiply_add(y, x, broadcast(5.0000001201e-1f));
  y = multiply_add(x * x, y, x + broadcast(1.0f));
  return times_two_to(y, n);
}

}  // namespace
#endif
