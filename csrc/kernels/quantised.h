/* GGUF's quantised blocks, expanded to the values that pyvllm/model_loader/gguf_dequant.py gives, bit for bit: each
 * value is computed in float32 in the same order of operations and then rounded to the activation type.
 *
 * A group of elements that share a scale has few different values. What the instruction sets do with them, in simd_*.h:
 *   write_values<T, N>(values, indices, out)  values.of(q) of 32 bytes q, of which only the lowest bits count: four
 *                                             where N is 16, five where it is 32
 *   write_signed<T>(bytes, a, b, out)         32 signed bytes, the first sixteen times a, the others times b
 *   bits_at, bits_of, with_fifth              32 bits of memory, or one bit of each byte; as the fifth bit of bytes
 * Source of layouts and formulas: the block structs and dequantize_row_* of ggml.
 */
#ifndef VLLM_KERNELS_QUANTISED_H
#define VLLM_KERNELS_QUANTISED_H
#include "simd.h"

namespace {

/* How far ahead blocks are asked for, in bytes. */
constexpr int64_t kBlocksAhead = 4096;

/* The two float16 numbers at the beginning of a block, converted together; where there is one, the second means
 * nothing. */
struct Halves {
  float first, second;

  VK_INLINE explicit Halves(const uint8_t *block) {
    int32_t bits;
    __builtin_memcpy(&bits, block, 4);
    __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(bits));
    first = _mm_cvtss_f32(both);
    second = _mm_cvtss_f32(_mm_movehdup_ps(both));
  }
};

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

/* Elements that are expanded at a time. A type of blocks has
 *   kBytes, kGroups                     bytes of a block, and how many times so many elements
 *   Scales(block)                       what is computed once for all groups of a block
 *   group<T>(block, scales, j, out)     writes group j as T */
constexpr int64_t kGroup = 32;

/* Where there is one group. */
struct NoScales {
  VK_INLINE explicit NoScales(const uint8_t *) {}
};

/* The 32 nibbles of 16 bytes as the lowest bits of bytes: the low ones, then the high ones. */
inline __m256i nibbles(const uint8_t *from) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes);
}

struct Q4_0 {
  using Scales = NoScales;
  static constexpr int64_t kGroups = 1, kBytes = 18;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &, int64_t, typename T::Element *out) {
    write_values<T, 16>(Scaled{-8, Halves(block).first}, nibbles(block + 2), out);
  }
};

struct Q4_1 {
  using Scales = NoScales;
  static constexpr int64_t kGroups = 1, kBytes = 20;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &, int64_t, typename T::Element *out) {
    Halves halves(block);
    write_values<T, 16>(Shifted{halves.first, halves.second}, nibbles(block + 4), out);
  }
};

struct Q5_0 {
  using Scales = NoScales;
  static constexpr int64_t kGroups = 1, kBytes = 22;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &, int64_t, typename T::Element *out) {
    write_values<T, 32>(Scaled{-16, Halves(block).first}, with_fifth(nibbles(block + 6), bits_at(block + 2)), out);
  }
};

struct Q5_1 {
  using Scales = NoScales;
  static constexpr int64_t kGroups = 1, kBytes = 24;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &, int64_t, typename T::Element *out) {
    Halves halves(block);
    Shifted values = {halves.first, halves.second};
    write_values<T, 32>(values, with_fifth(nibbles(block + 8), bits_at(block + 4)), out);
  }
};

struct Q8_0 {
  using Scales = NoScales;
  static constexpr int64_t kGroups = 1, kBytes = 34;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &, int64_t, typename T::Element *out) {
    float d = Halves(block).first;
    write_signed<T>(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + 2)), d, d, out);
  }
};

/* Eight bytes as numbers. */
VK_INLINE __m256 eight_numbers(uint32_t low, uint32_t high) {
  __m128i bytes = _mm_cvtsi64_si128(int64_t(uint64_t(high) << 32 | low));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

/* The 6-bit scales and minima of a K block, packed as gguf_dequant.py tells, times the block's. */
struct PackedScales {
  alignas(32) float d[8], m[8];

  VK_INLINE explicit PackedScales(const uint8_t *block) {
    uint32_t packed[3];
    __builtin_memcpy(packed, block + 4, sizeof packed);
    constexpr uint32_t six = 0x3F3F3F3F, four = 0x0F0F0F0F, two = 0x30303030;
    __m256 scales = eight_numbers(packed[0] & six, (packed[2] & four) | (packed[0] >> 2 & two));
    __m256 minima = eight_numbers(packed[1] & six, (packed[2] >> 4 & four) | (packed[1] >> 2 & two));
    Halves halves(block);
    _mm256_store_ps(d, scales * _mm256_set1_ps(halves.first));
    _mm256_store_ps(m, minima * _mm256_set1_ps(-halves.second));
  }

  VK_INLINE Shifted of(int64_t j) const { return {d[j], m[j]}; }
};

/* Nibbles of group j of a K block, as the lowest bits: low ones of 32 bytes for even groups, high ones for odd. */
inline __m256i group_nibbles(const uint8_t *from, int64_t j) {
  __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + j / 2 * 32));
  return j % 2 ? _mm256_srli_epi16(bytes, 4) : bytes;
}

struct Q4_K {
  using Scales = PackedScales;
  static constexpr int64_t kGroups = 8, kBytes = 144;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &scales, int64_t j, typename T::Element *out) {
    write_values<T, 16>(scales.of(j), group_nibbles(block + 16, j), out);
  }
};

struct Q5_K {
  using Scales = PackedScales;
  static constexpr int64_t kGroups = 8, kBytes = 176;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &scales, int64_t j, typename T::Element *out) {
    __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + 16));
    write_values<T, 32>(scales.of(j), with_fifth(group_nibbles(block + 48, j), bits_of(high, int(j))), out);
  }
};

/* The sixteen scales of a block, times the block's. */
struct SignedScales {
  alignas(32) float d[16];

  VK_INLINE explicit SignedScales(const uint8_t *block) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(block + 192));
    uint16_t bits;
    __builtin_memcpy(&bits, block + 208, 2);
    __m256 scale = _mm256_set1_ps(_cvtsh_ss(bits));
    _mm256_store_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)) * scale);
    _mm256_store_ps(d + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))) * scale);
  }
};

struct Q6_K {
  using Scales = SignedScales;
  static constexpr int64_t kGroups = 8, kBytes = 210;
  template <class T>
  VK_INLINE static void group(const uint8_t *block, const Scales &scales, int64_t j, typename T::Element *out) {
    int64_t half = j / 4, part = j % 4;
    __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + half * 64 + part % 2 * 32));
    __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + 128 + half * 32));
    low = _mm256_and_si256(_mm256_srl_epi16(low, _mm_cvtsi32_si128(int(part / 2 * 4))), _mm256_set1_epi8(15));
    high = _mm256_and_si256(_mm256_srl_epi16(high, _mm_cvtsi32_si128(int(part * 2))), _mm256_set1_epi8(3));
    __m256i q = _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32));
    write_signed<T>(q, scales.d[2 * j], scales.d[2 * j + 1], out);
  }
};

template <class Q>
inline void ask_ahead(const uint8_t *block) {
  for (int64_t line = 0; line < Q::kBytes; line += 64) __builtin_prefetch(block + kBlocksAhead + line, 0, 2);
}

/* Calls f with the type of blocks, if it is one. */
template <class F>
inline bool with_blocks(int64_t type, F f) {
  switch (type) {
    case VK_Q4_0: f(Q4_0{}); return true;
    case VK_Q4_1: f(Q4_1{}); return true;
    case VK_Q5_0: f(Q5_0{}); return true;
    case VK_Q5_1: f(Q5_1{}); return true;
    case VK_Q8_0: f(Q8_0{}); return true;
    case VK_Q4_K: f(Q4_K{}); return true;
    case VK_Q5_K: f(Q5_K{}); return true;
    case VK_Q6_K: f(Q6_K{}); return true;
    default: return false;
  }
}

/* Writes `count` elements of whole blocks of type Q as T. */
template <class Q, class T>
inline void expand(const char *from, int64_t count, typename T::Element *out) {
  const uint8_t *block = reinterpret_cast<const uint8_t *>(from);
  for (int64_t at = 0; at < count; block += Q::kBytes) {
    ask_ahead<Q>(block);
    typename Q::Scales scales(block);
#pragma GCC unroll 8
    for (int64_t j = 0; j < Q::kGroups; j++, at += kGroup) Q::template group<T>(block, scales, j, out + at);
  }
}

}  // namespace
#endif
