/* The vocabulary of simd.h on AVX2 with FMA and F16C (x86-64-v3): eight lanes. bfloat16 is the upper half of a float32,
 * so its products are those of float32, each pair added one after the other. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

namespace {

using Vec = __m256;
using Mask = __m256i;
constexpr int64_t kLanes = 8;
/* A step of bfloat16 takes two additions here: fewer than eight sums would wait for one another. */
constexpr int kRowsOfOne = 8;
/* 32 elements are four vectors, which run out beside sums: rows are expanded first. */
constexpr bool kExpandsBeside = false;

inline Mask first_lanes(int64_t count) {
  int within = count < kLanes ? int(count) : int(kLanes);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(within), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec select(Mask mask, Vec chosen, Vec others) {
  return _mm256_blendv_ps(others, chosen, _mm256_castsi256_ps(mask));
}

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec broadcast(float value) { return _mm256_set1_ps(value); }
inline Vec steps() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec multiply_subtract(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
inline Vec subtract_product(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
inline Vec greater(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec lesser(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec nearest(Vec value) { return _mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/* 2^n has n + 127 as its exponent and no other bits. */
inline Vec times_two_to(Vec y, Vec n) {
  __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return y * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

/* Numbers rounded to even in their upper halves, which are moved down; what is no number stays none. */
inline __m256i bfloats(Vec value) {
  __m256i bits = _mm256_castps_si256(value);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, is_nan), 16);
}

/* Eight numbers of F16 or BF16. */
template <class T>
inline __m128i halves(Vec value) {
  if constexpr (T::kType == VK_F16) return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i words = bfloats(value);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

template <class T>
inline Vec widened(__m128i halves) {
  if constexpr (T::kType == VK_F16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

template <class T>
inline Vec load(const typename T::Element *from) {
  if constexpr (T::kType == VK_F32) return _mm256_loadu_ps(from);
  else return widened<T>(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}

/* The first `count` lanes from memory, the others zero. */
template <class T>
inline Vec load(const typename T::Element *from, int64_t count) {
  if (count >= kLanes) return load<T>(from);
  typename T::Element lanes[kLanes] = {};
  __builtin_memcpy(lanes, from, size_t(count) * sizeof *from);
  return load<T>(lanes);
}

template <class T>
inline void store(typename T::Element *to, Vec value) {
  if constexpr (T::kType == VK_F32) _mm256_storeu_ps(to, value);
  else _mm_storeu_si128(reinterpret_cast<__m128i *>(to), halves<T>(value));
}

template <class T>
inline void store(typename T::Element *to, Vec value, int64_t count) {
  if (count >= kLanes) return store<T>(to, value);
  typename T::Element lanes[kLanes];
  store<T>(lanes, value);
  __builtin_memcpy(to, lanes, size_t(count) * sizeof *to);
}

template <class T>
inline Vec rounded(Vec value) {
  if constexpr (T::kType == VK_F32) return value;
  else return widened<T>(halves<T>(value));
}

/* Eight pairs of bfloat16 numbers, widened. */
struct Pairs {
  Vec even, odd;
};

inline Pairs pairs_of(__m256i both) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xFFFF0000))))};
}

template <>
struct Dot<BF16> {
  static constexpr int64_t kStep = 16;
  using Lanes = Pairs;
  static Lanes get(const uint16_t *row) {
    return pairs_of(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(row)));
  }
  static Lanes get(const uint16_t *row, int64_t left) {
    if (left >= kStep) return get(row);
    uint16_t lanes[kStep] = {};
    __builtin_memcpy(lanes, row, size_t(left) * sizeof *row);
    return get(lanes);
  }
  static Vec add(Vec sum, Lanes x, Lanes w) {
    return multiply_add(x.odd, w.odd, multiply_add(x.even, w.even, sum));
  }
};

template <class T>
inline auto spread(const typename T::Element *from) {
  if constexpr (T::kType == VK_BF16) {
    int32_t both;
    __builtin_memcpy(&both, from, 4);
    return pairs_of(_mm256_set1_epi32(both));
  } else if constexpr (T::kType == VK_F16) {
    return broadcast(_cvtsh_ss(*from));
  } else {
    return broadcast(*from);
  }
}

/* Lane sums of pairs of vectors, three times over. */
inline Vec pair_halves(Vec a, Vec b) { return _mm256_blend_ps(a, b, 0xF0) + _mm256_permute2f128_ps(a, b, 0x21); }
inline Vec pair_doubles(Vec a, Vec b) {
  Vec crossed = _mm256_castpd_ps(_mm256_shuffle_pd(_mm256_castps_pd(a), _mm256_castps_pd(b), 0x5));
  return _mm256_blend_ps(a, b, 0xCC) + crossed;
}
inline Vec pair_singles(Vec a, Vec b) {
  return _mm256_blend_ps(a, b, 0xAA) + _mm256_permute_ps(_mm256_blend_ps(b, a, 0xAA), 0xB1);
}

inline Vec lane_sums(const Vec v[kLanes]) {
  Vec four[4];
  for (int i = 0; i < 4; i++) four[i] = pair_halves(v[i], v[i + 4]);
  return pair_singles(pair_doubles(four[0], four[2]), pair_doubles(four[1], four[3]));
}

inline float sum_of(Vec value) {
  __m128 four = _mm256_castps256_ps128(value) + _mm256_extractf128_ps(value, 1);
  __m128 two = four + _mm_movehl_ps(four, four);
  return _mm_cvtss_f32(two + _mm_movehdup_ps(two));
}

inline float greatest_of(Vec value) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ps(two, _mm_movehdup_ps(two)));
}

/* All bits of a byte for each of 32 bits. */
using Bits = __m256i;

inline Bits bits_of(__m256i bytes, int bit) {
  __m256i mask = _mm256_set1_epi8(char(1 << bit));
  return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask);
}

inline Bits bits_at(const uint8_t *from) {
  int32_t bits;
  __builtin_memcpy(&bits, from, 4);
  __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  __m256i mask = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte);
  return _mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask);
}

inline __m256i with_fifth(__m256i indices, Bits bits) {
  __m256i four = _mm256_and_si256(indices, _mm256_set1_epi8(15));
  return _mm256_or_si256(four, _mm256_and_si256(bits, _mm256_set1_epi8(16)));
}

template <class T>
VK_INLINE void write_signed(__m256i bytes, float first, float second, typename T::Element *out) {
  for (int i = 0; i < 4; i++) {
    __m128i half = i < 2 ? _mm256_castsi256_si128(bytes) : _mm256_extracti128_si256(bytes, 1);
    Vec numbers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(i % 2 ? _mm_srli_si128(half, 8) : half));
    store<T>(out + i * 8, numbers * broadcast(i < 2 ? first : second));
  }
}

/* The values of indices `first` to first + 15 as F16 or BF16, in order. */
template <class T, class V>
inline __m256i sixteen(const V &values, float first) {
  if constexpr (T::kType == VK_F16) {
    Vec low = values.of(steps() + broadcast(first)), high = values.of(steps() + broadcast(first + 8));
    return _mm256_set_m128i(halves<F16>(high), halves<F16>(low));
  } else {
    Vec outer = _mm256_setr_ps(0, 1, 2, 3, 8, 9, 10, 11) + broadcast(first);
    return _mm256_packus_epi32(bfloats(values.of(outer)), bfloats(values.of(outer + broadcast(4))));
  }
}

/* Two tables of sixteen bytes, each twice: the lower and the upper bytes of sixteen values. */
struct ByteTables {
  __m256i low, high;

  explicit ByteTables(__m256i values) {
    __m128i bytes = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m256i parted = _mm256_shuffle_epi8(values, _mm256_broadcastsi128_si256(bytes));
    low = _mm256_permute4x64_epi64(parted, 0x88);
    high = _mm256_permute4x64_epi64(parted, 0xDD);
  }
};

/* Numbers of 16 bits come from tables of bytes; those of 32 are computed, which is sooner done than four look-ups. */
template <class T, int N, class V>
VK_INLINE void write_values(const V &values, __m256i indices, typename T::Element *out) {
  if (N == 16) indices = _mm256_and_si256(indices, _mm256_set1_epi8(15));
  if constexpr (T::kType == VK_F32) {
    for (int i = 0; i < 2; i++) {
      __m128i half = i ? _mm256_extracti128_si256(indices, 1) : _mm256_castsi256_si128(indices);
      store<F32>(out + i * 16, values.of(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(half))));
      store<F32>(out + i * 16 + 8, values.of(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(half, 8)))));
    }
  } else {
    /* Elements 0 to 7 and 16 to 23 below, the others above: where joining bytes of a half puts them in order. */
    __m256i crossed = _mm256_permute4x64_epi64(indices, 0xD8);
    ByteTables table(sixteen<T>(values, 0));
    __m256i low = _mm256_shuffle_epi8(table.low, crossed), high = _mm256_shuffle_epi8(table.high, crossed);
    if constexpr (N == 32) {
      ByteTables upper(sixteen<T>(values, 16));
      __m256i is_upper = _mm256_cmpgt_epi8(crossed, _mm256_set1_epi8(15));
      low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(upper.low, crossed), is_upper);
      high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(upper.high, crossed), is_upper);
    }
    auto *to = reinterpret_cast<__m256i *>(out);
    _mm256_storeu_si256(to, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi8(low, high));
  }
}

}  // namespace
