/* GGUF's quantised blocks, expanded to the values that pyvllm/model_loader/gguf_dequant.py gives, bit for bit: each
 * value is computed in float32 in the same order of operations and then rounded to the activation type.
 *
 * A group of elements that share a scale has few different values: they are computed once, into a table, and each
 * element is looked up. Source of layouts and formulas: the block structs and dequantize_row_* of ggml.
 */
#ifndef VLLM_KERNELS_QUANTISED_H
#define VLLM_KERNELS_QUANTISED_H
#include "simd.h"

namespace {

/* How far ahead blocks are asked for, in bytes. */
constexpr int64_t kBlocksAhead = 4096;

inline float half_at(const uint8_t *from) {
  uint16_t bits;
  __builtin_memcpy(&bits, from, 2);
  return _cvtsh_ss(bits);
}

inline Vec steps_from(float first) {
  return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), broadcast(first));
}

/* Sixteen numbers of T. */
template <class T>
inline __m256i halves(Vec value) {
  if constexpr (T::kType == VK_F16) return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return (__m256i)_mm512_cvtneps_pbh(value);
}

/* The values of 32 possible elements, as T, and the writing of 32 elements by their indices (one byte each). */
template <class T>
struct Table {
  __m512i words;
  Table(Vec low, Vec high)
      : words(_mm512_inserti64x4(_mm512_castsi256_si512(halves<T>(low)), halves<T>(high), 1)) {}
  explicit Table(Vec low) : words(_mm512_castsi256_si512(halves<T>(low))) {}
  void look_up(__m256i indices, typename T::Element *out) const {
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(indices), words));
  }
};

template <>
struct Table<F32> {
  Vec low, high;
  Table(Vec first, Vec second) : low(first), high(second) {}
  explicit Table(Vec first) : low(first), high(first) {}
  void look_up(__m256i indices, float *out) const {
    __m512i first = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(indices));
    __m512i second = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(indices, 1));
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(low, second, high));
  }
};

/* (q - offset) * d for q = first to first + 15. */
inline Vec scaled(Vec steps, float d) { return _mm512_mul_ps(steps, broadcast(d)); }
/* q * d + m. */
inline Vec shifted(Vec steps, float d, float m) { return _mm512_add_ps(scaled(steps, d), broadcast(m)); }

/* The 32 nibbles of 16 bytes: the low ones, then the high ones. */
inline __m256i nibbles(const uint8_t *from) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), _mm256_set1_epi8(15));
}

/* Adds 16 to the elements whose bit is set. */
inline __m256i with_fifth(__m256i indices, __mmask32 bits) {
  return _mm256_mask_add_epi8(indices, bits, indices, _mm256_set1_epi8(16));
}

inline __mmask32 bits_at(const uint8_t *from) {
  uint32_t bits;
  __builtin_memcpy(&bits, from, 4);
  return bits;
}

/* Sixteen signed bytes times a scale. */
template <class T>
inline void store_scaled(__m128i bytes, float d, typename T::Element *out) {
  store<T>(out, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), broadcast(d)));
}

struct Q4_0 {
  static constexpr int64_t kElements = 32, kBytes = 18;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    Table<T>(scaled(steps_from(-8), half_at(block))).look_up(nibbles(block + 2), out);
  }
};

struct Q4_1 {
  static constexpr int64_t kElements = 32, kBytes = 20;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    Table<T>(shifted(steps_from(0), half_at(block), half_at(block + 2))).look_up(nibbles(block + 4), out);
  }
};

struct Q5_0 {
  static constexpr int64_t kElements = 32, kBytes = 22;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    float d = half_at(block);
    Table<T>(scaled(steps_from(-16), d), scaled(steps_from(0), d))
        .look_up(with_fifth(nibbles(block + 6), bits_at(block + 2)), out);
  }
};

struct Q5_1 {
  static constexpr int64_t kElements = 32, kBytes = 24;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    float d = half_at(block), m = half_at(block + 2);
    Table<T>(shifted(steps_from(0), d, m), shifted(steps_from(16), d, m))
        .look_up(with_fifth(nibbles(block + 8), bits_at(block + 4)), out);
  }
};

struct Q8_0 {
  static constexpr int64_t kElements = 32, kBytes = 34;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    float d = half_at(block);
    for (int i = 0; i < 32; i += 16)
      store_scaled<T>(_mm_loadu_si128(reinterpret_cast<const __m128i *>(block + 2 + i)), d, out + i);
  }
};

/* The 6-bit scale and minimum of group j, packed as gguf_dequant.py tells. */
inline void scale_and_min(const uint8_t *packed, int j, float d, float dmin, float *scale, float *min) {
  int s, m;
  if (j < 4) {
    s = packed[j] & 63;
    m = packed[j + 4] & 63;
  } else {
    s = (packed[j + 4] & 15) | ((packed[j - 4] >> 2) & 48);
    m = (packed[j + 4] >> 4) | ((packed[j] >> 2) & 48);
  }
  *scale = d * float(s);
  *min = dmin * float(m);
}

/* Nibbles of group j of a K block: low ones of 32 bytes for even groups, high ones for odd. */
inline __m256i group_nibbles(const uint8_t *from, int j) {
  __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + j / 2 * 32));
  return _mm256_and_si256(j % 2 ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}

struct Q4_K {
  static constexpr int64_t kElements = 256, kBytes = 144;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    float d = half_at(block), dmin = half_at(block + 2), scale, min;
    for (int j = 0; j < 8; j++) {
      scale_and_min(block + 4, j, d, dmin, &scale, &min);
      Table<T>(shifted(steps_from(0), scale, -min)).look_up(group_nibbles(block + 16, j), out + j * 32);
    }
  }
};

struct Q5_K {
  static constexpr int64_t kElements = 256, kBytes = 176;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    float d = half_at(block), dmin = half_at(block + 2), scale, min;
    __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + 16));
    for (int j = 0; j < 8; j++) {
      scale_and_min(block + 4, j, d, dmin, &scale, &min);
      __mmask32 bits = _mm256_test_epi8_mask(high, _mm256_set1_epi8(char(1 << j)));
      Table<T>(shifted(steps_from(0), scale, -min), shifted(steps_from(16), scale, -min))
          .look_up(with_fifth(group_nibbles(block + 48, j), bits), out + j * 32);
    }
  }
};

struct Q6_K {
  static constexpr int64_t kElements = 256, kBytes = 210;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    float d = half_at(block + 208);
    const int8_t *scales = reinterpret_cast<const int8_t *>(block + 192);
    for (int group = 0; group < 8; group++) {
      int half = group / 4, part = group % 4;
      const uint8_t *low = block + half * 64 + part % 2 * 32, *high = block + 128 + half * 32;
      for (int i = 0; i < 32; i += 16) {
        __m128i nibble = _mm_loadu_si128(reinterpret_cast<const __m128i *>(low + i));
        __m128i two = _mm_loadu_si128(reinterpret_cast<const __m128i *>(high + i));
        nibble = _mm_and_si128(part < 2 ? nibble : _mm_srli_epi16(nibble, 4), _mm_set1_epi8(15));
        two = _mm_and_si128(_mm_srl_epi16(two, _mm_cvtsi32_si128(2 * part)), _mm_set1_epi8(3));
        __m128i q = _mm_sub_epi8(_mm_or_si128(nibble, _mm_slli_epi16(two, 4)), _mm_set1_epi8(32));
        store_scaled<T>(q, d * float(scales[group * 2 + i / 16]), out + group * 32 + i);
      }
    }
  }
};

/* Writes `count` elements of whole blocks of type Q as T. */
template <class Q, class T>
inline void expand(const void *from, int64_t count, typename T::Element *out) {
  const uint8_t *block = static_cast<const uint8_t *>(from);
  for (int64_t at = 0; at < count; at += Q::kElements, block += Q::kBytes) {
    for (int64_t line = 0; line < Q::kBytes; line += 64) _mm_prefetch(block + kBlocksAhead + line, _MM_HINT_T1);
    Q::template expand<T>(block, out + at);
  }
}

}  // namespace
#endif
