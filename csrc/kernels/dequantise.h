/* Weight rows in another type than the activations: expanded exactly as a load would expand them. */
#ifndef VLLM_KERNELS_DEQUANTISE_H
#define VLLM_KERNELS_DEQUANTISE_H
#include "pool.h"
#include "quantised.h"

namespace {

/* Numbers of type S, converted to T. */
template <class S, class T>
inline void convert(const void *from, int64_t count, typename T::Element *out) {
  const typename S::Element *values = static_cast<const typename S::Element *>(from);
  for (int64_t at = 0; at < count; at += kLanes) store<T>(out + at, load<S>(values + at, count - at), count - at);
}

/* Elements of a block and its bytes. */
struct Block {
  int64_t elements, nbytes;
};

inline Block block_of(int64_t type) {
  switch (type) {
    case VK_F32: return {1, 4};
    case VK_Q4_0: return {Q4_0::kElements, Q4_0::kBytes};
    case VK_Q4_1: return {Q4_1::kElements, Q4_1::kBytes};
    case VK_Q5_0: return {Q5_0::kElements, Q5_0::kBytes};
    case VK_Q5_1: return {Q5_1::kElements, Q5_1::kBytes};
    case VK_Q8_0: return {Q8_0::kElements, Q8_0::kBytes};
    case VK_Q4_K: return {Q4_K::kElements, Q4_K::kBytes};
    case VK_Q5_K: return {Q5_K::kElements, Q5_K::kBytes};
    case VK_Q6_K: return {Q6_K::kElements, Q6_K::kBytes};
    default: return {1, 2};
  }
}

/* Writes `count` elements of whole blocks as T. */
template <class T>
inline void dequantise(int64_t type, const void *from, int64_t count, typename T::Element *out) {
  switch (type) {
    case VK_F32: return convert<F32, T>(from, count, out);
    case VK_F16: return convert<F16, T>(from, count, out);
    case VK_Q4_0: return expand<Q4_0, T>(from, count, out);
    case VK_Q4_1: return expand<Q4_1, T>(from, count, out);
    case VK_Q5_0: return expand<Q5_0, T>(from, count, out);
    case VK_Q5_1: return expand<Q5_1, T>(from, count, out);
    case VK_Q8_0: return expand<Q8_0, T>(from, count, out);
    case VK_Q4_K: return expand<Q4_K, T>(from, count, out);
    case VK_Q5_K: return expand<Q5_K, T>(from, count, out);
    case VK_Q6_K: return expand<Q6_K, T>(from, count, out);
    default: return convert<BF16, T>(from, count, out);
  }
}

inline const char *row_at(const vk_part &part, int64_t row, int64_t k) {
  Block block = block_of(part.type);
  return static_cast<const char *>(part.rows) + row * (k / block.elements) * block.nbytes;
}

/* A worker's access to rows of a weight as T: where they are, or expanded into the worker's memory. */
template <class T>
class WorkerRows {
 public:
  using Element = typename T::Element;

  /* For at most `rows` rows, which are there together until the task ends. */
  WorkerRows(const vk_linear *linear, vk_pool *pool, int worker, int64_t rows)
      : linear_(linear), pool_(pool), worker_(worker), rows_(rows) {}

  /* Rows `row` to `row + count - 1`. next: what is worth asking for meanwhile; NULL when expanding reads ahead. */
  const Element *get(int64_t row, int64_t count, const char **next) {
    int64_t k = linear_->k, done = 0;
    Element *tile = nullptr;
    *next = nullptr;
    for (const vk_part *part = linear_->parts; done < count; row -= part->num_rows, part++) {
      int64_t first = row + done, left = part->num_rows - first;
      if (left <= 0) continue;
      int64_t here = left < count - done ? left : count - done;
      const char *from = row_at(*part, first, k);
      if (part->type == T::kType && here == count) {
        if (left > here) *next = from + here * k * int64_t(sizeof(Element));
        return reinterpret_cast<const Element *>(from);
      }
      if (!tile) tile = take(count);
      dequantise<T>(part->type, from, here * k, tile + done * k);
      done += here;
    }
    return tile;
  }

 private:
  Element *take(int64_t count) {
    int64_t k = linear_->k;
    if (!memory_) memory_ = static_cast<Element *>(pool_scratch(pool_, worker_, size_t(rows_ * k) * sizeof(Element)));
    Element *tile = memory_ + used_ * k;
    used_ += count;
    return tile;
  }

  const vk_linear *linear_;
  vk_pool *pool_;
  int worker_;
  int64_t rows_, used_ = 0;
  Element *memory_ = nullptr;
};

}  // namespace
#endif
