/* Weight rows in another type than the activations: expanded exactly as a load would expand them. */
#ifndef VLLM_KERNELS_DEQUANTISE_H
#define VLLM_KERNELS_DEQUANTISE_H
#include "quantised.h"

namespace {

/* Numbers of type S, converted to T. */
template <class S, class T>
inline void convert(const char *from, int64_t count, typename T::Element *out) {
  const auto *values = reinterpret_cast<const typename S::Element *>(from);
  for (int64_t at = 0; at < count; at += kLanes) store<T>(out + at, load<S>(values + at, count - at), count - at);
}

/* Writes `count` elements of any type, whole blocks where it has such, as T. */
template <class T>
inline void dequantise(int64_t type, const char *from, int64_t count, typename T::Element *out) {
  switch (type) {
    case VK_F32: return convert<F32, T>(from, count, out);
    case VK_F16: return convert<F16, T>(from, count, out);
    case VK_BF16: return convert<BF16, T>(from, count, out);
    default: with_blocks(type, [&](auto q) { expand<decltype(q), T>(from, count, out); });
  }
}

/* Bytes of a row of k elements in blocks of type Q, and in any type. */
template <class Q>
inline int64_t row_bytes(int64_t k) {
  return k / (Q::kGroups * kGroup) * Q::kBytes;
}

inline int64_t row_bytes(int64_t type, int64_t k) {
  int64_t nbytes = k * (type == VK_F32 ? 4 : 2);
  with_blocks(type, [&](auto q) { nbytes = row_bytes<decltype(q)>(k); });
  return nbytes;
}

inline const char *row_at(const vk_part &part, int64_t row, int64_t k) {
  return static_cast<const char *>(part.rows) + row * row_bytes(part.type, k);
}

}  // namespace
#endif
