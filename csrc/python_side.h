/*
 * What pyvllm/capi.py calls in C. build_ffi.py gives these declarations to cffi as they stand here.
 */
#ifndef VLLM_PYTHON_SIDE_H
#define VLLM_PYTHON_SIDE_H

#include "vllm.h"

/* The tokens that vllm_complete_tokens takes and gives; n_out_tokens is set by capi.py. */
typedef struct vllm__tokens {
    const int32_t* prompt_tokens;
    int32_t n_prompt_tokens;
    int32_t* out_tokens;
    int32_t max_out_tokens;
    int32_t n_out_tokens;
} vllm__tokens;

/* A callback for text, and what it is given. */
typedef struct vllm__text_call {
    vllm_token_callback callback;
    void* user_data;
} vllm__text_call;

/* Set this thread's last error. */
void vllm__set_error(const char* text);

/* Say that every function is bound; the start has failed without it. */
void vllm__mark_bound(void);

/* Stop computing before torch is destroyed at the end of the process: see leave.c. Called when torch is loaded, and after
 * whatever may have been the first call of one of its functions. It may be called often. */
void vllm__guard_exit(void);

/* Copy length bytes and a NUL into memory that vllm_string_free frees; NULL when there is none. */
char* vllm__new_string(const char* bytes, int64_t length);

/* Memory for count numbers that vllm_embedding_result_free frees; NULL when there is none. */
float* vllm__new_floats(int64_t count);

/* The static string that is equal to name: "stop", "length" or "abort"; NULL for anything else. */
const char* vllm__finish_reason(const char* name);

/* Hand a line to the host's callback, or to stderr. */
void vllm__log(int32_t level, const char* text);

/* Whether those lines go to stderr now, so that a progress line may be drawn there. */
bool vllm__logs_to_stderr(void);

#endif
