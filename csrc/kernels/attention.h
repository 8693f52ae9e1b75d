/* Attention over the paged cache: keys in blocks of 64 positions that start at multiples of 64, softmax as they come.
 *
 * Source: Vaswani et al. 2017, section 3.2; the running maximum and sum: Milakov and Gimelshein 2018; grouped heads:
 * Ainslie et al. 2023; window: Mistral 7B, section 2. A query's order of addition depends on its position alone.
 */
#ifndef VLLM_KERNELS_ATTENTION_H
#define VLLM_KERNELS_ATTENTION_H
#include "cache.h"
#include "pool.h"
#include "rows.h"

namespace {

constexpr int kQueries = 4; /* rows of a tile */
constexpr int kChunks = 4;  /* of a block of keys */
constexpr int64_t kKeys = kChunks * kChunk;
constexpr int kSplit = int(kChunk / kLanes); /* vectors of a chunk */
constexpr int kVectors = kChunks * kSplit;   /* of a block */
/* Tokens of one span that a task attends from. */
constexpr int64_t kTaskTokens = 16;
/* Below every score. A finite number: the difference of two of them is zero, not undefined. */
constexpr float kLowest = -1e30f;

struct AttentionTask {
  int32_t span, head;
  int64_t first, last; /* rows of the step */
};

template <class T>
struct Attending {
  using Element = typename T::Element;
  const vk_attention *layer;
  const vk_step *step;
  const AttentionTask *tasks;
  Element *qkv; /* [m, H + 2K, D] */
  Element *out; /* [m, H, D] */
};

/* Scores and softmax state of a tile of queries, which are rows of one sequence and one key-value head. */
template <class T>
struct Tile {
  const typename T::Element *query[kQueries];
  int64_t position[kQueries];
  Vec greatest[kQueries];
  Vec sum[kQueries];
  alignas(64) float weights[kQueries][kKeys];
  alignas(64) uint16_t pairs[kQueries][kKeys];
};

/* scores[i][v]: query i times the keys of vector v. */
template <class T>
inline void score(const Tile<T> &tile, const typename T::Element *const keys[kChunks], int64_t head_dim,
                  Vec scores[kQueries][kVectors]) {
  constexpr int64_t P = kPair<T>;
  for (int first = 0; first < kVectors; first += kTile) {
    Vec acc[kQueries][kTile];
    for (int i = 0; i < kQueries; i++)
      for (int v = 0; v < kTile; v++) acc[i][v] = zero();
    for (int64_t d = 0; d < head_dim; d += P) {
      typename Dot<T>::Lanes lanes[kTile];
      for (int v = 0; v < kTile; v++)
        lanes[v] = Dot<T>::get(keys[(first + v) / kSplit] + d * kChunk + (first + v) % kSplit * kLanes * P);
      for (int i = 0; i < kQueries; i++) {
        typename Dot<T>::Lanes query = spread<T>(tile.query[i] + d);
        for (int v = 0; v < kTile; v++) acc[i][v] = Dot<T>::add(acc[i][v], query, lanes[v]);
      }
    }
    for (int i = 0; i < kQueries; i++)
      for (int v = 0; v < kTile; v++) scores[i][first + v] = acc[i][v];
  }
}

/* Lanes of a vector of keys from `first` on that a query at `position` sees. */
inline Mask seen_lanes(int64_t position, int64_t window, int64_t first) {
  Mask seen = position < first ? Mask{} : first_lanes(position - first + 1);
  int64_t hidden = window ? position - window + 1 - first : 0;
  return hidden > 0 ? Mask(seen & ~first_lanes(hidden)) : seen;
}

/* Turns a query's scores into weights, and returns by what its earlier sums must be multiplied. */
template <class T>
inline Vec soften(Tile<T> *tile, int i, const Vec scores[kVectors], int64_t first, int64_t window, float scale) {
  Vec scaled[kVectors], top = broadcast(kLowest);
  Mask seen[kVectors];
  for (int v = 0; v < kVectors; v++) {
    seen[v] = seen_lanes(tile->position[i], window, first + v * kLanes);
    scaled[v] = select(seen[v], scores[v] * broadcast(scale), broadcast(kLowest));
    top = greater(top, scaled[v]);
  }
  Vec greatest = greater(tile->greatest[i], broadcast(greatest_of(top)));
  Vec factor = exponential(tile->greatest[i] - greatest);
  Vec sum = tile->sum[i] * factor;
  for (int v = 0; v < kVectors; v++) {
    Vec weight = select(seen[v], exponential(scaled[v] - greatest), zero());
    if constexpr (T::kType == VK_BF16) {
      store<BF16>(tile->pairs[i] + v * kLanes, weight);
      weight = rounded<BF16>(weight);
    } else {
      store<F32>(tile->weights[i] + v * kLanes, weight);
    }
    sum = sum + weight;
  }
  tile->greatest[i] = greatest;
  tile->sum[i] = sum;
  return factor;
}

/* Adds the weighted values of a chunk to `sums`, for up to kTile vectors of the head dimension from `d` on. */
template <class T>
inline void add_values(const Tile<T> &tile, const typename T::Element *values, int64_t head_dim, int64_t d, int c,
                       int64_t num_keys, Vec sums[kQueries][kTile]) {
  constexpr int64_t P = kPair<T>;
  for (int64_t key = 0; key < num_keys; key += P) {
    typename Dot<T>::Lanes lanes[kTile];
    for (int v = 0; v < kTile; v++) {
      int64_t left = head_dim - d - v * kLanes;
      const typename T::Element *from = values + key * head_dim + (d + v * kLanes) * P;
      lanes[v] = left >= kLanes ? Dot<T>::get(from) : Dot<T>::get(from, left > 0 ? left * P : 0);
    }
    for (int i = 0; i < kQueries; i++) {
      typename Dot<T>::Lanes weight;
      if constexpr (T::kType == VK_BF16) weight = spread<BF16>(tile.pairs[i] + c * kChunk + key);
      else weight = broadcast(tile.weights[i][c * kChunk + key]);
      for (int v = 0; v < kTile; v++) sums[i][v] = Dot<T>::add(sums[i][v], weight, lanes[v]);
    }
  }
}

/* Adds a block of values to the tile's sums [kQueries][head_dim, rounded up to 64], after multiplying those. */
template <class T>
inline void mix(const Tile<T> &tile, const typename T::Element *const values[kChunks], int64_t num_keys,
                int64_t head_dim, const Vec factors[kQueries], float *sums) {
  int64_t wide = (head_dim + 63) / 64 * 64;
  for (int64_t d = 0; d < head_dim; d += kTile * kLanes) {
    Vec acc[kQueries][kTile];
    for (int i = 0; i < kQueries; i++)
      for (int v = 0; v < kTile; v++) acc[i][v] = load<F32>(sums + i * wide + d + v * kLanes) * factors[i];
    for (int c = 0; c < kChunks && c * kChunk < num_keys; c++) {
      int64_t here = num_keys - c * kChunk < kChunk ? num_keys - c * kChunk : kChunk;
      add_values<T>(tile, values[c], head_dim, d, c, here, acc);
    }
    for (int i = 0; i < kQueries; i++)
      for (int v = 0; v < kTile; v++) store<F32>(sums + i * wide + d + v * kLanes, acc[i][v]);
  }
}

/* Attends from the queries of a tile; `last` is the greatest of their positions, `oldest` the first that one sees. */
template <class T>
inline void attend_tile(const Attending<T> &job, const AttentionTask &task, Tile<T> *tile, int64_t oldest, int64_t last,
                        float *sums) {
  const vk_attention *layer = job.layer;
  int64_t D = layer->head_dim, chunk_size = layer->num_kv_heads * D * kChunk;
  const vk_span &span = job.step->spans[task.span];
  const auto *keys = keys_of<T>(layer, job.step) + task.head * D * kChunk;
  const auto *values = values_of<T>(layer, job.step) + task.head * D * kChunk;
  for (int64_t first = oldest / kKeys * kKeys; first <= last; first += kKeys) {
    const typename T::Element *key[kChunks], *value[kChunks];
    for (int c = 0; c < kChunks; c++) {
      int64_t position = first + c * kChunk;
      int64_t chunk = chunk_of(job.step, span, position < last ? position : last);
      key[c] = keys + chunk * chunk_size;
      value[c] = values + chunk * chunk_size;
    }
    Vec scores[kQueries][kVectors], factors[kQueries];
    score<T>(*tile, key, D, scores);
    for (int i = 0; i < kQueries; i++)
      factors[i] = soften<T>(tile, i, scores[i], first, layer->window, layer->scale);
    int64_t num_keys = last - first + 1 < kKeys ? last - first + 1 : kKeys;
    mix<T>(*tile, value, num_keys, D, factors, sums);
  }
}

template <class T>
void attend(void *argument, int64_t number, int worker) {
  const Attending<T> &job = *static_cast<const Attending<T> *>(argument);
  const AttentionTask &task = job.tasks[number];
  const vk_attention *layer = job.layer;
  const vk_span &span = job.step->spans[task.span];
  int64_t D = layer->head_dim, group = layer->num_heads / layer->num_kv_heads, wide = (D + 63) / 64 * 64;
  int64_t stride = (layer->num_heads + 2 * layer->num_kv_heads) * D, rows = (task.last - task.first) * group;
  float *sums = static_cast<float *>(pool_scratch(job.step->pool, worker));
  for (int64_t row = 0; row < rows; row += kQueries) {
    Tile<T> tile;
    int64_t number_of[kQueries];
    for (int i = 0; i < kQueries; i++) {
      int64_t at = number_of[i] = row + i < rows ? row + i : rows - 1;
      int64_t token = task.first + at / group, head = task.head * group + at % group;
      tile.query[i] = job.qkv + token * stride + head * D;
      tile.position[i] = span.first_position + token - span.start;
      tile.greatest[i] = broadcast(kLowest);
      tile.sum[i] = zero();
    }
    for (int64_t at = 0; at < kQueries * wide; at += kLanes) store<F32>(sums + at, zero());
    int64_t oldest = layer->window ? tile.position[0] - layer->window + 1 : 0;
    attend_tile<T>(job, task, &tile, oldest > 0 ? oldest : 0, tile.position[kQueries - 1], sums);
    for (int i = 0; i < kQueries && row + i < rows; i++) {
      Vec total = broadcast(sum_of(tile.sum[i]));
      int64_t token = task.first + number_of[i] / group, head = task.head * group + number_of[i] % group;
      typename T::Element *out = job.out + (token * layer->num_heads + head) * D;
      for (int64_t d = 0; d < D; d += kLanes)
        store<T>(out + d, load<F32>(sums + i * wide + d) / total, D - d);
    }
  }
}

/* Lists the tasks of a step: each span's tokens in pieces, for every key-value head. */
inline int64_t list_tasks(const vk_step *step, int64_t num_kv_heads, AttentionTask *tasks) {
  int64_t count = 0;
  for (int64_t number = 0; number < step->num_spans; number++) {
    const vk_span &span = step->spans[number];
    /* The last pieces see the most keys: they come first, so that no thread is left with one. */
    for (int64_t last = span.end; last > span.start; last -= kTaskTokens) {
      int64_t first = last - kTaskTokens > span.start ? last - kTaskTokens : span.start;
      for (int64_t head = 0; head < num_kv_heads; head++)
        tasks[count++] = {int32_t(number), int32_t(head), first, last};
    }
  }
  return count;
}

/* For each query and key a quarter of a nanosecond for every 16 elements, and twice that for the softmax, about. */
inline int64_t attention_nanoseconds(const vk_attention *layer, const vk_step *step) {
  int64_t pairs = 0;
  for (int64_t number = 0; number < step->num_spans; number++) {
    const vk_span &span = step->spans[number];
    pairs += (span.end - span.start) * (span.first_position + span.end - span.start);
  }
  return pairs * layer->num_heads * (layer->head_dim / 16 + 2) / 4;
}

/* out [m, H, D] of qkv [m, H + 2K, D], rotated, whose keys and values are in the cache; false: there is no memory. */
template <class T>
bool attend_all(const vk_attention *layer, const vk_step *step, typename T::Element *qkv, typename T::Element *out) {
  int64_t most = (step->m / kTaskTokens + step->num_spans) * layer->num_kv_heads;
  auto *tasks = static_cast<AttentionTask *>(pool_shared(step->pool, POOL_TASKS, size_t(most) * sizeof(AttentionTask)));
  int64_t wide = (layer->head_dim + 63) / 64 * 64;
  if (!tasks || !pool_reserve(step->pool, size_t(kQueries * wide) * sizeof(float))) return false;
  Attending<T> job = {layer, step, tasks, qkv, out};
  int64_t count = list_tasks(step, layer->num_kv_heads, tasks);
  pool_run(step->pool, attend<T>, &job, count, attention_nanoseconds(layer, step));
  return true;
}

}  // namespace
#endif
