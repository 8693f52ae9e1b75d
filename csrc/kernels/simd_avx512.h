/* The vocabulary of simd.h on AVX-512 with its bfloat16 products: sixteen lanes. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c")
#endif

namespace {

using Vec = __m512;
using Mask = __mmask16;
constexpr int64_t kLanes = 16;
/* Weight rows that are multiplied together with a single token. One after the other they are read in the order of
 * memory, which the processor sees and reads ahead; their sums overlap, as an addition takes one instruction. */
constexpr int kRowsOfOne = 1;
/* Whether quantised blocks are expanded in registers that products leave: 32 elements are one or two vectors here. */
constexpr bool kExpandsBeside = true;

inline Mask first_lanes(int64_t count) { return count >= kLanes ? 0xFFFF : Mask((1u << count) - 1); }
inline Vec select(Mask mask, Vec chosen, Vec others) { return _mm512_mask_blend_ps(mask, others, chosen); }

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec steps() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec multiply_subtract(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
inline Vec subtract_product(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
inline Vec greater(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec lesser(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec nearest(Vec value) { return _mm512_roundscale_ps(value, 0); }
inline Vec times_two_to(Vec y, Vec n) { return _mm512_scalef_ps(y, n); }

/* Sixteen numbers of F16 or BF16. */
template <class T>
inline __m256i halves(Vec value) {
  if constexpr (T::kType == VK_F16) return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return (__m256i)_mm512_cvtneps_pbh(value);
}

template <class T>
inline Vec widened(__m256i halves) {
  if constexpr (T::kType == VK_F16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

template <class T>
inline Vec load(const typename T::Element *from) {
  if constexpr (T::kType == VK_F32) return _mm512_loadu_ps(from);
  else return widened<T>(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}

/* The first `count` lanes from memory, the others zero. */
template <class T>
inline Vec load(const typename T::Element *from, int64_t count) {
  Mask mask = first_lanes(count);
  if constexpr (T::kType == VK_F32) return _mm512_maskz_loadu_ps(mask, from);
  else return widened<T>(_mm256_maskz_loadu_epi16(mask, from));
}

/* Without a mask, as what is stored with one is not handed on to a load that follows. */
template <class T>
inline void store(typename T::Element *to, Vec value) {
  if constexpr (T::kType == VK_F32) _mm512_storeu_ps(to, value);
  else _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), halves<T>(value));
}

template <class T>
inline void store(typename T::Element *to, Vec value, int64_t count) {
  Mask mask = first_lanes(count);
  if constexpr (T::kType == VK_F32) _mm512_mask_storeu_ps(to, mask, value);
  else _mm256_mask_storeu_epi16(to, mask, halves<T>(value));
}

template <class T>
inline Vec rounded(Vec value) {
  if constexpr (T::kType == VK_F32) return value;
  else return widened<T>(halves<T>(value));
}

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

template <class T>
inline auto spread(const typename T::Element *from) {
  if constexpr (T::kType == VK_BF16) {
    int32_t both;
    __builtin_memcpy(&both, from, 4);
    return (__m512bh)_mm512_set1_epi32(both);
  } else if constexpr (T::kType == VK_F16) {
    return _mm512_cvtph_ps(_mm256_set1_epi16(int16_t(*from)));
  } else {
    return broadcast(*from);
  }
}

/* Lane sums of pairs of vectors, four times over. Blends stand in for shuffles where they can, because they do not
 * compete with multiplication. */
inline Vec pair_halves(Vec a, Vec b) {
  Vec kept = _mm512_mask_blend_ps(0xFF00, a, b);
  return kept + _mm512_shuffle_f32x4(a, b, 0x4E);
}
inline Vec pair_quarters(Vec a, Vec b) {
  Vec crossed = _mm512_mask_blend_ps(0xF0F0, b, a);
  return _mm512_mask_blend_ps(0xF0F0, a, b) + _mm512_shuffle_f32x4(crossed, crossed, 0xB1);
}
inline Vec pair_doubles(Vec a, Vec b) {
  Vec crossed = _mm512_castpd_ps(_mm512_shuffle_pd(_mm512_castps_pd(a), _mm512_castps_pd(b), 0x55));
  return _mm512_mask_blend_ps(0xCCCC, a, b) + crossed;
}
inline Vec pair_singles(Vec a, Vec b) {
  Vec crossed = _mm512_mask_blend_ps(0xAAAA, b, a);
  return _mm512_mask_blend_ps(0xAAAA, a, b) + _mm512_permute_ps(crossed, 0xB1);
}

inline Vec lane_sums(const Vec v[kLanes]) {
  Vec eight[8], four[4];
  for (int i = 0; i < 8; i++) eight[i] = pair_halves(v[i], v[i + 8]);
  for (int i = 0; i < 4; i++) four[i] = pair_quarters(eight[i], eight[i + 4]);
  return pair_singles(pair_doubles(four[0], four[2]), pair_doubles(four[1], four[3]));
}

inline float sum_of(Vec value) { return _mm512_reduce_add_ps(value); }
inline float greatest_of(Vec value) { return _mm512_reduce_max_ps(value); }

using Bits = __mmask32;

inline Bits bits_at(const uint8_t *from) {
  Bits bits;
  __builtin_memcpy(&bits, from, 4);
  return bits;
}

inline Bits bits_of(__m256i bytes, int bit) { return _mm256_test_epi8_mask(bytes, _mm256_set1_epi8(char(1 << bit))); }

inline __m256i with_fifth(__m256i indices, Bits bits) {
  __m256i four = _mm256_and_si256(indices, _mm256_set1_epi8(15));
  return _mm256_mask_add_epi8(four, bits, four, _mm256_set1_epi8(16));
}

/* 32 numbers of F16 or BF16. */
template <class T>
inline __m512i halves(Vec first, Vec second) {
  if constexpr (T::kType == VK_BF16) return (__m512i)_mm512_cvtne2ps_pbh(second, first);
  return _mm512_inserti64x4(_mm512_castsi256_si512(halves<T>(first)), halves<T>(second), 1);
}

template <class T>
VK_INLINE void write_signed(__m256i bytes, float first, float second, typename T::Element *out) {
  Vec low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes))) * broadcast(first);
  Vec high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1))) * broadcast(second);
  if constexpr (T::kType == VK_F32) {
    store<T>(out, low);
    store<T>(out + 16, high);
  } else {
    _mm512_storeu_si512(out, halves<T>(low, high));
  }
}

/* The values of all indices are a table of which one permutation takes 32 elements. Sixteen are there twice, so that a
 * fifth bit does not count. */
template <class T, int N, class V>
VK_INLINE void write_values(const V &values, __m256i indices, typename T::Element *out) {
  Vec low = values.of(steps()), high = N == 32 ? values.of(steps() + broadcast(16)) : low;
  if constexpr (T::kType == VK_F32) {
    __m512i first = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(indices));
    __m512i second = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(indices, 1));
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(low, second, high));
  } else {
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(indices), halves<T>(low, high)));
  }
}

}  // namespace
