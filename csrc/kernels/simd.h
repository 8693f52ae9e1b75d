/* The AVX-512 vocabulary of the kernels: sixteen float32 lanes, loaded from and stored to the activation types. */
#ifndef VLLM_KERNELS_SIMD_H
#define VLLM_KERNELS_SIMD_H
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c")
#endif
#include <immintrin.h>
#include <stdint.h>
#include "kernels.h"

namespace {

using Vec = __m512;
constexpr int64_t kLanes = 16;

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

inline __mmask16 first_lanes(int64_t count) { return count >= kLanes ? 0xFFFF : __mmask16((1u << count) - 1); }

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float value) { return _mm512_set1_ps(value); }

/* The first `count` lanes from memory, the others zero. */
template <class T>
inline Vec load(const typename T::Element *from, int64_t count = kLanes) {
  __mmask16 mask = first_lanes(count);
  if constexpr (T::kType == VK_F32) return _mm512_maskz_loadu_ps(mask, from);
  if constexpr (T::kType == VK_F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

template <class T>
inline void store(typename T::Element *to, Vec value, int64_t count = kLanes) {
  __mmask16 mask = first_lanes(count);
  if constexpr (T::kType == VK_F32) {
    _mm512_mask_storeu_ps(to, mask, value);
  } else if constexpr (T::kType == VK_F16) {
    _mm256_mask_storeu_epi16(to, mask, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(value));
  }
}

/* `value` rounded to the activation type and back. */
template <class T>
inline Vec rounded(Vec value) {
  if constexpr (T::kType == VK_F32) return value;
  if constexpr (T::kType == VK_F16)
    return _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(value)), 16));
}

/* Products of what one load of a row gives, added to an accumulator: 16 elements, or 32 of bfloat16. */
template <class T>
struct Dot {
  static constexpr int64_t kStep = 16;
  using Lanes = __m512;
  static Lanes get(const typename T::Element *row) { return load<T>(row); }
  static Lanes get(const typename T::Element *row, int64_t left) { return load<T>(row, left); }
  static Vec add(Vec sum, Lanes x, Lanes w) { return _mm512_fmadd_ps(x, w, sum); }
};

template <>
struct Dot<BF16> {
  static constexpr int64_t kStep = 32;
  using Lanes = __m512bh;
  static Lanes get(const uint16_t *row) { return (__m512bh)_mm512_loadu_si512(row); }
  static Lanes get(const uint16_t *row, int64_t left) {
    return (__m512bh)_mm512_maskz_loadu_epi16(__mmask32((1ull << left) - 1), row);
  }
  static Vec add(Vec sum, Lanes x, Lanes w) { return _mm512_dpbf16_ps(sum, x, w); }
};

/* Lane sums of pairs of vectors, four times over: lane i of the result is the sum of the lanes of v[i]. Blends stand
 * in for shuffles where they can, because they do not compete with multiplication. The order of addition is the same
 * for every lane. */
inline Vec pair_halves(Vec a, Vec b) {
  Vec kept = _mm512_mask_blend_ps(0xFF00, a, b);
  return _mm512_add_ps(kept, _mm512_shuffle_f32x4(a, b, 0x4E));
}
inline Vec pair_quarters(Vec a, Vec b) {
  Vec crossed = _mm512_mask_blend_ps(0xF0F0, b, a);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xF0F0, a, b), _mm512_shuffle_f32x4(crossed, crossed, 0xB1));
}
inline Vec pair_doubles(Vec a, Vec b) {
  Vec crossed = _mm512_castpd_ps(_mm512_shuffle_pd(_mm512_castps_pd(a), _mm512_castps_pd(b), 0x55));
  return _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, a, b), crossed);
}
inline Vec pair_singles(Vec a, Vec b) {
  Vec crossed = _mm512_mask_blend_ps(0xAAAA, b, a);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xAAAA, a, b), _mm512_permute_ps(crossed, 0xB1));
}

inline Vec lane_sums(const Vec v[16]) {
  Vec eight[8], four[4];
  for (int i = 0; i < 8; i++) eight[i] = pair_halves(v[i], v[i + 8]);
  for (int i = 0; i < 4; i++) four[i] = pair_quarters(eight[i], eight[i + 4]);
  return pair_singles(pair_doubles(four[0], four[2]), pair_doubles(four[1], four[3]));
}

inline float sum_of(Vec value) { return _mm512_reduce_add_ps(value); }
inline float greatest_of(Vec value) { return _mm512_reduce_max_ps(value); }

/* e^x with the error of a float32 polynomial, the same on every lane; e^0 is 1. Source: Cody and Waite range reduction
 * and the degree-5 minimax polynomial of the Cephes library (expf). */
inline Vec exponential(Vec x) {
  x = _mm512_max_ps(_mm512_min_ps(x, broadcast(88.0f)), broadcast(-87.0f));
  Vec n = _mm512_roundscale_ps(_mm512_mul_ps(x, broadcast(1.44269504f)), 0);
  x = _mm512_fnmadd_ps(n, broadcast(0.693359375f), x);
  x = _mm512_fnmadd_ps(n, broadcast(-2.12194440e-4f), x);
  Vec y = broadcast(1.9875691500e-4f);
  y = _mm512_fmadd_ps(y, x, broadcast(1.3981999507e-3f));
  y = _mm512_fmadd_ps(y, x, broadcast(8.3334519073e-3f));
  y = _mm512_fmadd_ps(y, x, broadcast(4.1665795894e-2f));
  y = _mm512_fmadd_ps(y, x, broadcast(1.6666665459e-1f));
  y = _mm512_fmadd_ps(y, x, broadcast(5.0000001201e-1f));
  y = _mm512_fmadd_ps(_mm512_mul_ps(x, x), y, _mm512_add_ps(x, broadcast(1.0f)));
  return _mm512_scalef_ps(y, n);
}

}  // namespace
#endif
