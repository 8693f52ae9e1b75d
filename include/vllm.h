/*
 * vllm.h: the C interface of libvllm, ABI version 21.
 *
 * libvllm runs language models that are larger than the device. Chosen weights live in host memory and are read in
 * place ("uva") or copied to the device just ahead of use ("prefetch"). What is offloaded is said by one JSON object,
 * the one that vLLM's OffloadConfig takes, in vllm_model_params.offload_config.
 *
 * This header declares exactly the functions that work. It is C11 and C++17. Link with
 *
 *     cc program.c $(vllm-config --cflags --libs)
 *
 * or with `pkg-config --cflags --libs vllm`, or dlopen libvllm.so.21 and look the functions up.
 *
 * A whole program, without the checks for want of memory:
 *
 *     #include <stdio.h>
 *     #include <vllm.h>
 *     int main(int argc, char** argv) {
 *         vllm_model_params model = vllm_model_params_default();
 *         vllm_sampling_params sampling = vllm_sampling_params_default();
 *         vllm_engine* engine = NULL;
 *         vllm_completion answer;
 *         model.model_path = argc > 1 ? argv[1] : "model";
 *         model.offload_config = "{\"uva\": {\"cpu_offload_gb\": 0.1}}";
 *         if (vllm_engine_load(&model, &engine) != VLLM_OK ||
 *             vllm_complete(engine, "Once upon a time", &sampling, &answer) != VLLM_OK) {
 *             fprintf(stderr, "%s\n", vllm_last_error());
 *             vllm_engine_free(engine);
 *             return 1;
 *         }
 *         puts(answer.text);
 *         vllm_completion_free(&answer);
 *         vllm_engine_free(engine);
 *         return 0;
 *     }
 *
 * RULES THAT HOLD FOR EVERY FUNCTION
 *
 * Status.    A function that can fail returns a vllm_status. On any status but VLLM_OK every output is NULL or zeroed
 *            and vllm_last_error(), on the same thread, says what was asked, what was found and what to do.
 * Settings.  A field either acts or is refused by name and value; nothing is accepted and then ignored. A structure
 *            filled by its vllm_*_params_default() is always accepted as far as its model allows.
 * Strings.   Every `const char*` argument is UTF-8 ending in NUL, and so is every string given out; one that is not
 *            valid UTF-8 is refused by the name of its field. Arguments are borrowed for the call: the library keeps
 *            no pointer into them. A U+0000 that a model writes is given out as U+FFFD.
 * Ownership. What a function gives out belongs to the caller until the function named beside it frees it: never
 *            free(). Freeing NULL does nothing.
 * Handles.   A vllm_engine* or vllm_request* is looked up in a table of live ones and is never dereferenced first: NULL,
 *            one that was freed, a pointer from elsewhere or one cut to 32 bits gives VLLM_ERR_INVALID_ARGUMENT.
 * Threads.   Any thread may call any function, on one engine or on several; calls on one engine are answered together.
 *            Structures passed in must not change during the call.
 * Callbacks. They run on the thread that made the call, before it returns, except those of vllm_request_submit and
 *            logits processors, which say where they run. They must not throw or longjmp. They may call the library,
 *            except that they cannot free the engine they are running for.
 * Process.   The library writes nothing to stdout, installs no signal handler (but see vllm_server_main), never calls
 *            exit or abort, and lets no exception out. Its lines go to stderr, where a terminal also shows a load's
 *            progress, or to vllm_log_set's callback. When the process ends, calls that
 *            still run in other threads stop and do not return; no atexit handler or destructor may wait for them.
 * Python.    The core is the Python package pyvllm, in an isolated interpreter that the first call which needs it
 *            starts (about 10 ms) and that lives until the process ends: dlclose frees nothing. PYTHONPATH, PYTHONHOME
 *            and PATH have no effect. The interpreter is the one of the environment that the library is installed
 *            in; VLLM_PYTHON_HOME names another environment (it must hold bin/python3.x of the library's version), and
 *            VLLM_PYTHONPATH puts directories in front of the module path. In a process that already runs Python,
 *            that interpreter is used if it is of the same minor version, and refused with VLLM_ERR_RUNTIME if not.
 *            A start that failed is not tried again. Running out of memory during the start ends the process: that is
 *            CPython's doing and cannot be turned into a status.
 * fork().    A child of fork() in which the library had already started gets VLLM_ERR_RUNTIME from every call that
 *            needs Python. fork() followed by exec() is fine, and so is forking before the first call.
 */
#ifndef VLLM_H
#define VLLM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define VLLM_API __attribute__((visibility("default")))
#else
#define VLLM_API
#endif

/* The version of this header. vllm_version() and vllm_abi_version() are the same of the library that was loaded. */
#define VLLM_VERSION "0.21.0"
#define VLLM_VERSION_MAJOR 0
#define VLLM_VERSION_MINOR 21
#define VLLM_VERSION_PATCH 0
#define VLLM_ABI_VERSION 21

/* ---- Types ------------------------------------------------------------------------------------------------------ */

/* What became of a call. The numbers are for ever. */
typedef enum vllm_status {
    VLLM_OK = 0,
    /* NULL or a bad argument, an unsupported field, a bad configuration, an architecture that cannot offload, an
     * offload that can free nothing on this model, a prompt that is too long, a dead handle. */
    VLLM_ERR_INVALID_ARGUMENT = 1,
    /* The model cannot be loaded: path, file, architecture, a named device that is absent, no room on device or host,
     * or a loader that did not do what was planned. */
    VLLM_ERR_MODEL_LOAD = 2,
    /* Generation failed, a load was cancelled, Python could not start or is another version, or this is the child of
     * a fork(). */
    VLLM_ERR_RUNTIME = 3,
    /* Anything else that went wrong inside. */
    VLLM_ERR_UNKNOWN = 4
} vllm_status;

/* Values of vllm_model_params.device. */
typedef enum vllm_device {
    VLLM_DEVICE_AUTO = 0, /* an accelerator if there is one, else the CPU */
    VLLM_DEVICE_CPU = 1,
    VLLM_DEVICE_CUDA = 2
} vllm_device;

/* Values of the enable_* fields: the library's default, on, off. */
typedef enum vllm_switch {
    VLLM_SWITCH_DEFAULT = 0,
    VLLM_SWITCH_ON = 1,
    VLLM_SWITCH_OFF = 2
} vllm_switch;

/* Levels given to vllm_log_callback. */
typedef enum vllm_log_level {
    VLLM_LOG_DEBUG = 10, /* not printed on stderr; only a callback sees it */
    VLLM_LOG_INFO = 20,
    VLLM_LOG_WARNING = 30,
    VLLM_LOG_ERROR = 40
} vllm_log_level;

/* A loaded model. Made by vllm_engine_load, freed by vllm_engine_free. */
typedef struct vllm_engine vllm_engine;

/* A request that goes on by itself. Made by vllm_request_submit, freed by vllm_request_free. */
typedef struct vllm_request vllm_request;

/*
 * Text as it is generated.
 *
 * delta_text  the text that is new since the last call: well-formed UTF-8, never half a character, borrowed for this
 *             call. It may be empty in the last call, and only there.
 * finished    false while text arrives. Exactly one last call has true, and may carry the rest of the text.
 * user_data   as given to the function that takes the callback.
 * Return true to go on; false stops the generation early, which is VLLM_OK, and no further call is made.
 */
typedef bool (*vllm_token_callback)(const char* delta_text, bool finished, void* user_data);

/*
 * Change the logits before each token of a request is chosen.
 *
 * token_ids   the new tokens so far, n_token_ids of them; borrowed for this call.
 * logits      a float32 copy of the vocab_size logits of this request, to be changed in place; -INFINITY makes a token
 *             impossible. Penalties and structured output act after it.
 * user_data   vllm_sampling_params.logits_processor_user_data.
 * Called on the library's own thread, between the steps of the whole batch: be quick. It cannot call the engine that it
 * runs for. Logits that are NaN, or all -INFINITY, end this request with VLLM_ERR_RUNTIME and touch no other.
 */
typedef void (*vllm_logits_processor)(const int32_t* token_ids, int32_t n_token_ids, float* logits, int32_t vocab_size,
                                      void* user_data);

/*
 * The progress of a load.
 *
 * bytes_done     bytes of weights that are in their final place.
 * bytes_planned  bytes of weights in all; equal to bytes_done in the last call.
 * name           the weight that was placed last, "" before the first; borrowed for this call.
 * Return true to go on; false cancels the load, which then gives VLLM_ERR_RUNTIME. Calls come at least at start and end.
 */
typedef bool (*vllm_progress_callback)(int64_t bytes_done, int64_t bytes_planned, const char* name, void* user_data);

/*
 * A line that the library has to say.
 *
 * level  a vllm_log_level.
 * text   the line, UTF-8, without a newline; borrowed for this call.
 * Called on whichever thread has something to say, on several at once too.
 */
typedef void (*vllm_log_callback)(int32_t level, const char* text, void* user_data);

/*
 * Which model to load and how. Fill it with vllm_model_params_default() and set what differs. All strings are borrowed
 * for the call and may be NULL where a default is named. Fields that are "not supported yet" keep their place: any value
 * but those named is refused with VLLM_ERR_INVALID_ARGUMENT, by name and value.
 */
typedef struct vllm_model_params {
    /* Directory of a Hugging Face checkpoint (config.json, *.safetensors, tokenizer.json), or one GGUF file. Required,
     * except by vllm_offload_plan. */
    const char* model_path;
    /* A tokenizer_config.json to use instead of the model's own. NULL or "": the model's own. */
    const char* tokenizer_config_path;
    /* Tokens in one block of the key-value cache, a multiple of 16. 0 or less: 32. */
    int32_t block_size;
    /* Blocks of the key-value cache. 0 or less: sized by kv_cache_memory_bytes; both at once are refused. */
    int32_t num_blocks;
    /* Tokens of prompt and answer together. 0 or less: the model's own limit; more than that is refused. */
    int32_t max_model_len;
    /* Requests computed in one step at most. 0 or less: 8. */
    int32_t max_num_seqs;
    /* How the model writes tool calls: "hermes", "qwen3" or "qwen3_coder". With one, vllm_chat lets the model choose to
     * call. NULL or "": calls are only made when a request forces one. */
    const char* tool_parser;
    /* How the model writes its reasoning: "deepseek_r1" or "qwen3". With one, vllm_chat gives it apart from the content.
     * NULL or "": it stays in the content. */
    const char* reasoning_parser;
    /* Speculative decoding. NULL or "". Others: not supported. */
    const char* speculative_config;
    /* Whether requests share the cache of equal prefixes, a vllm_switch. Default: on. */
    int32_t enable_prefix_caching;
    /* Tokens computed in one step at most. 0 or less: 2048, or 4096 for a mixture of experts. */
    int32_t max_num_batched_tokens;
    /* Order of requests: "fcfs" (first come, first served), "priority", or "lpm" (longest cached prefix first). NULL or
     * "": fcfs. */
    const char* scheduling_policy;
    /* Transfer of the key-value cache. NULL or "". Others: not supported. Judged apart from offload_config. */
    const char* kv_transfer_config;
    /* Weight offload: one JSON object with the fields of vLLM's OffloadConfig, and "vllm_cpp" for this library's own:
     *   {"offload_backend": "auto" | "uva" | "prefetch",
     *    "uva":      {"cpu_offload_gb": GiB, "cpu_offload_params": ["name segment", ...]},
     *    "prefetch": {"offload_group_size": n, "offload_num_in_group": n, "offload_prefetch_step": n,
     *                 "offload_params": ["name segment", ...]},
     *    "vllm_cpp": {"device_fit": {"weight_budget_bytes": n, "auto": true}}}     auto: choose the offload that fits
     * NULL, "" or blank: no offload. It is judged before any other field, and before the path is looked at. */
    const char* offload_config;
    /* Jump-ahead decoding, a vllm_switch. Default and off. On: not supported yet. */
    int32_t enable_jump_forward;
    /* Where to run, a vllm_device. A named device that is absent is VLLM_ERR_MODEL_LOAD, never replaced by another. */
    int32_t device;
    /* Fraction of the device's free bytes that may be used, in (0, 1]. Default 0.92, and 0 means that too. */
    double gpu_memory_utilization;
    /* Bytes of the key-value cache. 0: sized by the device. Negative, or beside num_blocks, is refused. */
    int64_t kv_cache_memory_bytes;
    /* 0 or 1: leave out all but the language model. There is nothing else to load, so both say the same. */
    int32_t language_model_only;
    /* Limits on images and the like. NULL, "" or "{}". Others: not supported. */
    const char* limit_mm_per_prompt;
} vllm_model_params;

/*
 * How one request is sampled. Fill it with vllm_sampling_params_default() and set what differs: a zeroed structure is
 * not valid, because top_p and repetition_penalty of 0 mean nothing.
 */
typedef struct vllm_sampling_params {
    /* Divides the logits. Default 1. 0 or less is greedy: always the most probable token. */
    float temperature;
    /* Keep the most probable tokens whose probabilities reach this sum. In (0, 1]; default 1 keeps all. */
    float top_p;
    /* Keep this many tokens. Default 0, and -1, keep all. */
    int32_t top_k;
    /* Drop tokens less probable than this fraction of the most probable one. In [0, 1]; default 0 drops none. */
    float min_p;
    /* New tokens at most. At least 1; default 16. */
    int32_t max_tokens;
    /* With has_seed 1: the seed that makes sampling repeatable. With has_seed 0 it must be 0. */
    uint64_t seed;
    /* 0 (default): a new seed for every request. 1: use seed. */
    int32_t has_seed;
    /* Subtracted from the logits of tokens that the answer has. In [-2, 2]; default 0. */
    float presence_penalty;
    /* Subtracted once for each time that the answer has the token. In [-2, 2]; default 0. */
    float frequency_penalty;
    /* Divides the positive logits, and multiplies the negative ones, of tokens of prompt and answer. Above 0; default 1. */
    float repetition_penalty;
    /* New tokens before an end-of-sequence token or a stop string may end the answer. Default 0; at most max_tokens. */
    int32_t min_tokens;
    /* 0 (default): an end-of-sequence token ends the text. 1: go on after it. */
    int32_t ignore_eos;
    /* n_stop strings that end the text and are not part of it. NULL when n_stop is 0. */
    const char* const* stop;
    /* Strings in stop. Default 0. */
    int32_t n_stop;
    /* Structured output, of which at most one kind may be set: the answer is JSON of this schema. Default NULL. */
    const char* structured_json;
    /* Structured output: the answer matches this regular expression. Default NULL. */
    const char* structured_regex;
    /* Structured output: the answer is one of n_structured_choice strings. Default NULL. */
    const char* const* structured_choice;
    /* Strings in structured_choice. Default 0. */
    int32_t n_structured_choice;
    /* Structured output: a context-free grammar, in GBNF (llama.cpp) or Lark notation. Default NULL. */
    const char* structured_grammar;
    /* Structured output: 1 for any JSON object. Default 0. */
    int32_t structured_json_object;
    /* Changes the logits before each token is chosen. It must live as long as the request. Default NULL. */
    vllm_logits_processor logits_processor;
    /* Given to logits_processor. NULL as long as that is NULL. */
    void* logits_processor_user_data;
} vllm_sampling_params;

/* What a request gave. Filled by vllm_complete and vllm_complete_tokens, emptied by vllm_completion_free. */
typedef struct vllm_completion {
    /* The new text. Owned by this structure. */
    char* text;
    /* Why it ended: "stop", "length" (max_tokens or max_model_len) or "abort". Static storage, never to be freed. */
    const char* finish_reason;
    /* Tokens of the prompt, with those that the tokenizer adds. */
    int32_t prompt_tokens;
    /* New tokens. */
    int32_t completion_tokens;
} vllm_completion;

/* Vectors of texts. Filled by vllm_embed, emptied by vllm_embedding_result_free. */
typedef struct vllm_embedding_result {
    /* n_embeddings vectors of dim numbers, one after the other, each of length 1. Owned by this structure. */
    float* values;
    /* How many vectors: as many as there were texts. */
    int32_t n_embeddings;
    /* Numbers in a vector: the model's hidden size. */
    int32_t dim;
    /* Tokens of all texts together, with those that the tokenizer adds. */
    int32_t prompt_tokens;
} vllm_embedding_result;

/* ---- Defaults and versions: these never start Python and never fail ---------------------------------------------- */

/* The default model parameters: gpu_memory_utilization 0.92, everything else zero. */
VLLM_API vllm_model_params vllm_model_params_default(void);

/* The default sampling parameters: temperature 1, top_p 1, max_tokens 16, repetition_penalty 1, everything else zero. */
VLLM_API vllm_sampling_params vllm_sampling_params_default(void);

/* The version of the library that was loaded, such as "0.21.0". Static storage. */
VLLM_API const char* vllm_version(void);

/* The ABI version of the library that was loaded; compare it with VLLM_ABI_VERSION. */
VLLM_API int32_t vllm_abi_version(void);

/* The name of a status, such as "VLLM_ERR_MODEL_LOAD"; of any other number, "unknown status". Static storage. */
VLLM_API const char* vllm_status_string(vllm_status status);

/*
 * What went wrong in the last call on this thread.
 *
 * Never NULL; "" after a call on this thread that succeeded. Valid until the next call on this thread. Longer texts are
 * cut at a character. The functions of this section, those that free strings and completions, vllm_log_set, and freeing
 * NULL leave the text as it is.
 */
VLLM_API const char* vllm_last_error(void);

/*
 * Send every line that the library has to say to a callback instead of stderr.
 *
 * callback   NULL brings back stderr.
 * user_data  given to the callback; must live as long as it is set. A line that another thread is printing at this very
 *            moment may still reach the former callback.
 * Never starts Python, so it can be called first of all.
 */
VLLM_API void vllm_log_set(vllm_log_callback callback, void* user_data);

/* ---- Engines ----------------------------------------------------------------------------------------------------- */

/*
 * Load a model.
 *
 * params  which model and how; borrowed for the call.
 * out     receives the engine; the caller frees it with vllm_engine_free. NULL on failure.
 * The configuration is judged first (milliseconds, no file access), then the model's description and headers, then the
 * room on device and host; only then is a weight read.
 * Errors: VLLM_ERR_INVALID_ARGUMENT, VLLM_ERR_MODEL_LOAD, VLLM_ERR_RUNTIME.
 */
VLLM_API vllm_status vllm_engine_load(const vllm_model_params* params, vllm_engine** out);

/*
 * Load a model, with options that the structure of ABI 21 has no field for, and with progress.
 *
 * params, out   as for vllm_engine_load.
 * options_json  one JSON object; NULL or "" is all defaults; an unknown key is refused by name. Borrowed for the call.
 *                 "dtype"         "auto" (the checkpoint's; bfloat16 for a quantised GGUF), "float32", "bfloat16",
 *                                 "float16"
 *                 "threads"       compute and reader threads, 1 to 1024; default: the cores that may be used
 *                 "gguf_weights"  of a quantised GGUF: "stored" keeps its blocks, and is refused where that cannot be
 *                                 (it can on a CPU of x86-64-v3, which is one with AVX2, FMA and F16C); "expanded" makes
 *                                 numbers of dtype of them; "auto" takes what is faster and fits: "expanded" with AVX2
 *                                 on fewer than four threads, unless that costs cache or offload, and "stored" wherever
 *                                 else it can be. The answers are the same.
 *                 "cpu_kernels"   what computes on the CPU device: "avx512" (with BW, VL, DQ and BF16) or "avx2" (with
 *                                 FMA and F16C), refused where the processor has not that, or "torch"; "auto" is the
 *                                 first of them that can be. Numbers that are rounded may differ between them.
 * progress      called as bytes arrive, or NULL. It and user_data are used only during the call.
 */
VLLM_API vllm_status vllm_engine_load_with_options(const vllm_model_params* params, const char* options_json,
                                                   vllm_progress_callback progress, void* user_data,
                                                   vllm_engine** out);

/*
 * Free an engine and its memory.
 *
 * Waits for calls that are running on it; later calls on it are refused. NULL: nothing happens. From a callback of the
 * same engine, and on a handle that is not a live engine, it does nothing but set vllm_last_error().
 */
VLLM_API void vllm_engine_free(vllm_engine* engine);

/*
 * Say where every byte of a loaded model is: asked, planned and measured.
 *
 * out_json  receives one JSON object; the caller frees it with vllm_string_free. NULL on failure. Its keys: schema,
 *           architecture, config, resolved_backend, enabled, weights, asked, planned, measured, bus_bytes_per_token,
 *           capacity, placements, unmatched, warnings. Bytes are integers. Further keys may appear.
 */
VLLM_API vllm_status vllm_engine_offload_report(const vllm_engine* engine, char** out_json);

/*
 * Say what a load would do, without reading a weight: the same object as vllm_engine_offload_report, "measured" null.
 *
 * params        as for vllm_engine_load. model_path NULL: the configuration alone is judged and shown, and what needs a
 *               model is null or empty.
 * options_json  as for vllm_engine_load_with_options.
 * out_json      receives the object; the caller frees it with vllm_string_free. NULL on failure.
 * What a load refuses before it reads a weight, this refuses with the same status and text.
 */
VLLM_API vllm_status vllm_offload_plan(const vllm_model_params* params, const char* options_json, char** out_json);

/* ---- Generation -------------------------------------------------------------------------------------------------- */

/*
 * Continue a text, and wait for all of it.
 *
 * prompt  the text to continue; borrowed for the call. With the tokens that the tokenizer adds it must be shorter than
 *         max_model_len.
 * params  how to sample; borrowed for the call; not NULL.
 * out     filled on success; empty it with vllm_completion_free. Zeroed on failure. Its former content is not freed.
 * Errors: VLLM_ERR_INVALID_ARGUMENT, VLLM_ERR_RUNTIME.
 */
VLLM_API vllm_status vllm_complete(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                   vllm_completion* out);

/*
 * Continue a list of tokens, and wait for all new ones.
 *
 * prompt_tokens   n_prompt_tokens token ids, at least one, used as they are: nothing is added. Borrowed for the call.
 * out_tokens      room for max_out_tokens ids, filled with the first max_out_tokens new ones. NULL if that is 0.
 * n_out_tokens    receives how many ids were written; 0 on failure. Not NULL.
 * out             also filled, if not NULL, as by vllm_complete: its completion_tokens counts all new tokens.
 */
VLLM_API vllm_status vllm_complete_tokens(vllm_engine* engine, const int32_t* prompt_tokens, int32_t n_prompt_tokens,
                                          const vllm_sampling_params* params, int32_t* out_tokens,
                                          int32_t max_out_tokens, int32_t* n_out_tokens, vllm_completion* out);

/*
 * Continue a text and hand it out as it arrives.
 *
 * prompt, params  as for vllm_complete.
 * callback        called on this thread with each piece of text; not NULL. See vllm_token_callback.
 * user_data       given to the callback.
 * Returns VLLM_OK too when the callback stopped the generation by returning false.
 */
VLLM_API vllm_status vllm_complete_stream(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                          vllm_token_callback callback, void* user_data);

/* ---- Requests that go on by themselves --------------------------------------------------------------------------- */

/*
 * Submit a text, and return at once.
 *
 * prompt, params  as for vllm_complete; borrowed for this call, but for what logits_processor needs.
 * callback        called with each piece of text, on a thread of the library that belongs to this request alone. It may
 *                 call the library, but not wait for, free, or free the engine of, its own request. Exactly one last
 *                 call has finished true, whatever the request ends with, unless the callback has returned false.
 * user_data       given to the callback; must live until vllm_request_wait or vllm_request_free has returned.
 * out             receives the request; the caller frees it with vllm_request_free. NULL on failure.
 * Requests of one engine are computed together, up to max_num_seqs of them in one step, by its scheduling_policy.
 */
VLLM_API vllm_status vllm_request_submit(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                         vllm_token_callback callback, void* user_data, vllm_request** out);

/* Ask for the end of a request, from any thread, its own callback too. It ends after the step that runs; VLLM_OK also if
 * it has ended already. */
VLLM_API vllm_status vllm_request_cancel(vllm_request* request);

/*
 * Wait until a request has ended and its callback has returned for the last time.
 *
 * Returns what it ended with: VLLM_OK, also for one that was cancelled, or VLLM_ERR_RUNTIME. Any number of threads may
 * wait, and wait again; the request's own callback may not, and gets VLLM_ERR_INVALID_ARGUMENT.
 */
VLLM_API vllm_status vllm_request_wait(vllm_request* request);

/* Whether a request has ended and its callback has returned for the last time. Never waits. False for what is no request,
 * and then vllm_last_error() says so. */
VLLM_API bool vllm_request_done(const vllm_request* request);

/* What went wrong with a request that is done; "" while it runs and if nothing did. Never NULL. Owned by the request:
 * valid until vllm_request_free. */
VLLM_API const char* vllm_request_error(const vllm_request* request);

/*
 * Free a request.
 *
 * One that still runs is cancelled first; returns when its callback has returned for the last time. NULL: nothing
 * happens. From its own callback, and on a handle that is no live request, it does nothing but set vllm_last_error().
 * vllm_engine_free ends the requests of its engine; they are freed all the same, before or after.
 */
VLLM_API void vllm_request_free(vllm_request* request);

/* ---- Chat -------------------------------------------------------------------------------------------------------- */

/*
 * Answer a conversation, and wait for all of it.
 *
 * request_json       one OpenAI chat completion request: messages (roles system, developer, user, assistant, tool;
 *                    contents are texts), tools, tool_choice, parallel_tool_calls, response_format,
 *                    max_completion_tokens or max_tokens, n, logprobs, top_logprobs, logit_bias,
 *                    chat_template_kwargs, and the sampling fields under vLLM's names. "model" is only repeated in the
 *                    answer. A field that does not act is refused by name, and so is one out of its bounds; a name
 *                    that nobody knows is passed over. Borrowed for the call.
 * out_response_json  receives one OpenAI chat.completion object; the caller frees it with vllm_string_free. NULL on
 *                    failure.
 * The prompt is made by the chat template of the model, in a sandbox; a model without one is refused. Without a limit the
 * answer may fill what is left of max_model_len.
 */
VLLM_API vllm_status vllm_chat(vllm_engine* engine, const char* request_json, char** out_response_json);

/*
 * Answer a conversation and hand it out as it arrives.
 *
 * request_json  as for vllm_chat; "stream" may be true or left out. stream_options.include_usage adds a last chunk.
 * callback      called on this thread with one OpenAI chat.completion.chunk object as delta_text; finished true with the
 *               last one. Returning false stops the answer, which is VLLM_OK.
 * user_data     given to the callback.
 */
VLLM_API vllm_status vllm_chat_stream(vllm_engine* engine, const char* request_json, vllm_token_callback callback,
                                      void* user_data);

/* ---- Embeddings -------------------------------------------------------------------------------------------------- */

/*
 * Give the vectors of texts: of each, its last token's final hidden state, scaled to length 1.
 *
 * engine  an engine of an embedding model: its config.json names an architecture such as "Qwen3Model", or a modules.json
 *         beside it asks for last-token pooling. Such an engine refuses the functions that generate, and every other
 *         engine refuses this one, with VLLM_ERR_INVALID_ARGUMENT.
 * texts   n_texts texts, at least one, each shorter than max_model_len tokens; borrowed for the call.
 * out     filled on success; empty it with vllm_embedding_result_free. Zeroed on failure. Its former content is not freed.
 */
VLLM_API vllm_status vllm_embed(vllm_engine* engine, const char* const* texts, int32_t n_texts,
                                vllm_embedding_result* out);

/* ---- The server -------------------------------------------------------------------------------------------------- */

/*
 * Do what the command vllm-server does, and return its exit code when it ends.
 *
 * argc, argv  as main has them: argv[0] is passed over, then come flags such as "--model". Borrowed for the call.
 * It ends in order on SIGINT and SIGTERM. Only this function handles signals (those two, and it ignores SIGPIPE), only
 * while it runs, and it puts the former handlers back; only one can run at a time. What its flags ask it to print
 * (--help, --check-config) goes to stdout. Returns 1 for a bad flag or a model that cannot be served, with one line on
 * stderr. Needs the Python extra pyvllm[server].
 */
VLLM_API int32_t vllm_server_main(int32_t argc, const char* const* argv);

/* ---- Freeing what was given out ---------------------------------------------------------------------------------- */

/* Free a string that a function gave out. NULL: nothing happens. Never starts Python. */
VLLM_API void vllm_string_free(char* text);

/* Free what a completion holds and zero it, so that a second call does nothing. NULL: nothing happens. The structure
 * itself is the caller's. Never starts Python. */
VLLM_API void vllm_completion_free(vllm_completion* completion);

/* Free what an embedding result holds and zero it, so that a second call does nothing. NULL: nothing happens. The
 * structure itself is the caller's. Never starts Python. */
VLLM_API void vllm_embedding_result_free(vllm_embedding_result* result);

#ifdef __cplusplus
}
#endif

#endif /* VLLM_H */
