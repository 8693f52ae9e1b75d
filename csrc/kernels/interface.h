/* The structs and functions that Python binds: cffi reads this file, so it holds plain declarations only. */

struct vk_pool;

/* Rows of a weight that are stored in one type, one after the other. */
struct vk_part {
  const void *rows;
  int64_t num_rows;
  int64_t type;
};

/* y = x W^T + b, with W [n, k] in up to three parts along n. */
struct vk_linear {
  struct vk_part parts[3];
  const void *bias;        /* [n] of the activation type, or NULL */
  const struct vk_linear *next; /* what is multiplied after it, asked for by threads that wait; NULL: it depends */
  int64_t num_parts, n, k;
};

/* One request's rows in a step. */
struct vk_span {
  int64_t start, end;      /* rows */
  int64_t first_position;  /* of row `start` in its sequence; what is before it is in the cache */
  int64_t first_block;     /* index into vk_step.block_table */
};

/* What all layers of a step share. */
struct vk_step {
  struct vk_pool *pool;
  const struct vk_span *spans;
  const int32_t *block_table; /* cache blocks of every span's sequence, one after the other */
  const float *cos, *sin;     /* [m, head_dim / 2], or NULL: queries and keys come rotated */
  char *keys, *values;        /* the cache of the first layer */
  int64_t layer_bytes;        /* from the keys of one layer to those of the next */
  int64_t m, num_spans, block_size;
};

/* The attention half of a decoder layer: x += o(attend(rotate(norm(qkv(norm(x)))))). */
struct vk_attention {
  struct vk_linear qkv, o;
  const void *input_norm;         /* [hidden] */
  const void *q_norm, *k_norm;    /* [head_dim] or NULL */
  int64_t layer;                  /* whose cache it is */
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t window;                 /* tokens that a token sees; 0 is all */
  int64_t type;                   /* of activations and cache */
  float scale, norm_eps;
};

/* The dense feed-forward half: x += down(silu(gate) * up) of norm(x). */
struct vk_mlp {
  struct vk_linear gate_up, down;
  const void *norm;               /* [hidden] */
  int64_t type;
  float norm_eps;
};

/* A mixture of experts as the feed-forward half: x += the sum of weight * down(silu(gate) * up) over the token's
 * experts. */
struct vk_moe {
  struct vk_linear router;        /* [num_experts, hidden] */
  struct vk_linear gate_up, down; /* of all experts: [num_experts * rows, k], each in one part */
  const void *norm;               /* [hidden] */
  int64_t num_experts, top_k;
  int64_t is_normalised;          /* whether a token's weights are made to sum to one */
  int64_t type;
  float norm_eps;
};

/* A decoder layer: attention, then one of the two others. */
struct vk_layer {
  const struct vk_attention *attention;
  const struct vk_mlp *mlp;
  const struct vk_moe *moe;
};

/* What kernels are compiled for, the slower first. AVX2 stands for x86-64-v3 (AVX2, FMA, F16C); AVX-512 has BW, VL, DQ
 * and BF16 besides F. */
enum vk_instruction_set { VK_AVX2 = 1, VK_AVX512 = 2 };

/* Those that return a number return 0 when there was no memory; vk_is_supported: when the processor has not that set.
 * All that is computed with a pool is computed with the pool's instruction set. */
int32_t vk_is_supported(int32_t instruction_set);
struct vk_pool *vk_pool_create(int32_t size, int32_t instruction_set);
void vk_pool_destroy(struct vk_pool *pool);
int32_t vk_layers_run(const struct vk_layer *layers, int64_t count, const struct vk_step *step, void *x);
int32_t vk_attend_run(const struct vk_attention *layer, const struct vk_step *step, void *qkv, void *out);
int32_t vk_linear_run(struct vk_pool *pool, const struct vk_linear *linear, int64_t type, const void *x, int64_t m,
                   void *out);
void vk_norm_run(struct vk_pool *pool, const void *weight, float eps, int64_t type, const void *x, int64_t m, int64_t k,
                 void *out);
void vk_highest_run(struct vk_pool *pool, int64_t type, const void *rows, int64_t m, int64_t n, float *best,
                    int64_t *at);
void vk_embed_run(struct vk_pool *pool, const struct vk_linear *table, int64_t type, const int64_t *ids, int64_t m,
                  void *out);
