/* GGUF's quantised blocks, expanded to the values that pyvllm/model_loader/gguf_dequant.py gives, bit for bit: each
 * value is computed in float32 in the same order of operations and then rounded to the activation type.
 *
 * A group of elements that share a scale has few different values. What the instruction sets do with them, in simd_*.h:
 *   write_values<T, N>(values, indices, out)  values.of(q) of 32 indices q below N, which is 16 or 32
 *   signed_lanes(bytes, first)                signed bytes as a vector, from number `first` on
 *   bits_at, bits_of, with_fifth              32 bits of memory, or one bit of each byte; 16 added where a bit is set
 * Source of layouts and formulas: the block structs and dequantize_row_* of ggml.
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

/* The value (q + first) * d of index q. */
struct Scaled {
  float first, d;
  Vec of(Vec q) const { return (q + broadcast(first)) * broadcast(d); }
};

/* The value q * d + m of index q. */
struct Shifted {
  float d, m;
  Vec of(Vec q) const { return q * broadcast(d) + broadcast(m); }
};

/* The 32 nibbles of 16 bytes: the low ones, then the high ones. */
inline __m256i nibbles(const uint8_t *from) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), _mm256_set1_epi8(15));
}

/* Sixteen signed bytes times a scale. */
template <class T>
inline void store_scaled(__m128i bytes, float d, typename T::Element *out) {
  for (int i = 0; i < 16; i += kLanes) store<T>(out + i, signed_lanes(bytes, i) * broadcast(d));
}

struct Q4_0 {
  static constexpr int64_t kElements = 32, kBytes = 18;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    write_values<T, 16>(Scaled{-8, half_at(block)}, nibbles(block + 2), out);
  }
};

struct Q4_1 {
  static constexpr int64_t kElements = 32, kBytes = 20;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    write_values<T, 16>(Shifted{half_at(block), half_at(block + 2)}, nibbles(block + 4), out);
  }
};

struct Q5_0 {
  static constexpr int64_t kElements = 32, kBytes = 22;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    write_values<T, 32>(Scaled{-16, half_at(block)}, with_fifth(nibbles(block + 6), bits_at(block + 2)), out);
  }
};

struct Q5_1 {
  static constexpr int64_t kElements = 32, kBytes = 24;
  template <class T>
  static void expand(const uint8_t *block, typename T::Element *out) {
    Shifted values = {half_at(block), half_at(block + 2)};
    write_values<T, 32>(values, with_fifth(nibbles(block + 8), bits_at(block + 4)), out);
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
      write_values<T, 16>(Shifted{scale, -min}, group_nibbles(block + 16, j), out + j * 32);
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
      __m256i indices = with_fifth(group_nibbles(block + 48, j), bits_of(high, j));
      write_values<T, 32>(Shifted{scale, -min}, indices, out + j * 32);
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

template <class Q>
inline void ask_ahead(const uint8_t *block) {
  for (int64_t line = 0; line < Q::kBytes; line += 64) __builtin_prefetch(block + kBlocksAhead + line, 0, 2);
}

/* Writes `count` elements of whole blocks of type Q as T. */
template <class Q, class T>
inline void expand(const void *from, int64_t count, typename T::Element *out) {
  const uint8_t *block = static_cast<const uint8_t *>(from);
  for (int64_t at = 0; at < count; at += Q::kElements, block += Q::kBytes) {
    ask_ahead<Q>(block);
    Q::template expand<T>(block, out + at);
  }
}

}  // namespace
#endif
