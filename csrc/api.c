/*
 * The public functions: check the arguments, start Python once, call capi.py, keep the last error right. This file is
 * compiled as a part of the module that cffi generates, after the static functions of python_calls.h.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

int vllm__cffi_start(void)
{
    return cffi_start_python();
}

/* ---- what needs no Python ---- */

VLLM_API vllm_model_params vllm_model_params_default(void)
{
    vllm_model_params params;
    memset(&params, 0, sizeof params);
    params.gpu_memory_utilization = 0.92;
    return params;
}

VLLM_API vllm_sampling_params vllm_sampling_params_default(void)
{
    vllm_sampling_params params;
    memset(&params, 0, sizeof params);
    params.temperature = 1.0f;
    params.top_p = 1.0f;
    params.max_tokens = 16;
    params.repetition_penalty = 1.0f;
    return params;
}

VLLM_API const char* vllm_version(void)
{
    return VLLM_VERSION;
}

VLLM_API int32_t vllm_abi_version(void)
{
    return VLLM_ABI_VERSION;
}

VLLM_API const char* vllm_status_string(vllm_status status)
{
    switch (status) {
    case VLLM_OK: return "VLLM_OK";
    case VLLM_ERR_INVALID_ARGUMENT: return "VLLM_ERR_INVALID_ARGUMENT";
    case VLLM_ERR_MODEL_LOAD: return "VLLM_ERR_MODEL_LOAD";
    case VLLM_ERR_RUNTIME: return "VLLM_ERR_RUNTIME";
    case VLLM_ERR_UNKNOWN: return "VLLM_ERR_UNKNOWN";
    }
    return "unknown status";
}

VLLM_API void vllm_string_free(char* text)
{
    free(text);
}

VLLM_API void vllm_completion_free(vllm_completion* completion)
{
    if (!completion)
        return;
    free(completion->text);
    memset(completion, 0, sizeof *completion);
}

VLLM_API void vllm_embedding_result_free(vllm_embedding_result* result)
{
    if (!result)
        return;
    free(result->values);
    memset(result, 0, sizeof *result);
}

/* ---- what capi.py uses ---- */

float* vllm__new_floats(int64_t count)
{
    return malloc((size_t)count * sizeof(float));
}

char* vllm__new_string(const char* bytes, int64_t length)
{
    char* copy = malloc((size_t)length + 1);
    if (!copy)
        return NULL;
    memcpy(copy, bytes, (size_t)length);
    copy[length] = '\0';
    return copy;
}

const char* vllm__finish_reason(const char* name)
{
    static const char* const known[] = {"stop", "length", "abort"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i]) == 0)
            return known[i];
    return NULL;
}

/* ---- calls into Python ---- */

/* Refuse an argument before Python is needed. */
static vllm_status refuse(const char* function, const char* problem)
{
    vllm__set_errorf("%s: %s", function, problem);
    return VLLM_ERR_INVALID_ARGUMENT;
}

static vllm_status refuse_number(const char* function, const char* name, int32_t found, const char* rule)
{
    vllm__set_errorf("%s: %s must be %s; got %d", function, name, rule, (int)found);
    return VLLM_ERR_INVALID_ARGUMENT;
}

#define REFUSE_IF(condition, problem) \
    do { \
        if (condition) \
            return refuse(__func__, problem); \
    } while (0)

/* Start Python, and be in a call until `leave`, if the status is VLLM_OK. */
static vllm_status begin(void)
{
    vllm_status status = vllm__start();
    if (status == VLLM_OK)
        vllm__enter();
    return status;
}

#define START_PYTHON() \
    do { \
        vllm_status started_ = begin(); \
        if (started_ != VLLM_OK) \
            return started_; \
    } while (0)

/* End the call. What a callback's own failed call left must not outlive the success of the call around it. */
static vllm_status leave(vllm_status status)
{
    vllm__leave();
    if (status == VLLM_OK)
        vllm__clear_error();
    return status;
}

static vllm_status leave_text(vllm_status status, char** out)
{
    if (status != VLLM_OK) {
        free(*out);
        *out = NULL;
    }
    return leave(status);
}

static vllm_status leave_completion(vllm_status status, vllm_completion* out)
{
    if (status != VLLM_OK)
        vllm_completion_free(out);
    return leave(status);
}

VLLM_API vllm_status vllm_engine_load_with_options(const vllm_model_params* params, const char* options_json,
                                                   vllm_progress_callback progress, void* user_data,
                                                   vllm_engine** out)
{
    if (out)
        *out = NULL;
    REFUSE_IF(!params, "params is NULL; fill a vllm_model_params with vllm_model_params_default()");
    REFUSE_IF(!out, "out is NULL; it receives the engine");
    START_PYTHON();
    vllm_status status = vllm__py_engine_load(params, options_json, progress, user_data, out);
    if (status != VLLM_OK)
        *out = NULL;
    return leave(status);
}

VLLM_API vllm_status vllm_engine_load(const vllm_model_params* params, vllm_engine** out)
{
    if (out)
        *out = NULL;
    REFUSE_IF(!params, "params is NULL; fill a vllm_model_params with vllm_model_params_default()");
    REFUSE_IF(!out, "out is NULL; it receives the engine");
    return vllm_engine_load_with_options(params, NULL, NULL, NULL, out);
}

VLLM_API void vllm_engine_free(vllm_engine* engine)
{
    if (engine && begin() == VLLM_OK)
        leave(vllm__py_engine_free(engine));
}

VLLM_API vllm_status vllm_engine_offload_report(const vllm_engine* engine, char** out_json)
{
    if (out_json)
        *out_json = NULL;
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!out_json, "out_json is NULL; it receives the document");
    START_PYTHON();
    return leave_text(vllm__py_engine_offload_report(engine, out_json), out_json);
}

VLLM_API vllm_status vllm_offload_plan(const vllm_model_params* params, const char* options_json, char** out_json)
{
    if (out_json)
        *out_json = NULL;
    REFUSE_IF(!params, "params is NULL; fill a vllm_model_params with vllm_model_params_default()");
    REFUSE_IF(!out_json, "out_json is NULL; it receives the document");
    START_PYTHON();
    return leave_text(vllm__py_offload_plan(params, options_json, out_json), out_json);
}

VLLM_API vllm_status vllm_complete(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                   vllm_completion* out)
{
    if (out)
        memset(out, 0, sizeof *out);
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!prompt, "prompt is NULL");
    REFUSE_IF(!params, "params is NULL; fill a vllm_sampling_params with vllm_sampling_params_default()");
    REFUSE_IF(!out, "out is NULL; it receives the completion");
    START_PYTHON();
    return leave_completion(vllm__py_complete(engine, prompt, params, out), out);
}

VLLM_API vllm_status vllm_complete_tokens(vllm_engine* engine, const int32_t* prompt_tokens, int32_t n_prompt_tokens,
                                          const vllm_sampling_params* params, int32_t* out_tokens,
                                          int32_t max_out_tokens, int32_t* n_out_tokens, vllm_completion* out)
{
    vllm_completion unwanted;
    vllm_completion* filled = out ? out : &unwanted;
    memset(filled, 0, sizeof *filled);
    if (n_out_tokens)
        *n_out_tokens = 0;
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!prompt_tokens, "prompt_tokens is NULL");
    if (n_prompt_tokens <= 0)
        return refuse_number(__func__, "n_prompt_tokens", n_prompt_tokens, "at least 1");
    REFUSE_IF(!params, "params is NULL; fill a vllm_sampling_params with vllm_sampling_params_default()");
    if (max_out_tokens < 0)
        return refuse_number(__func__, "max_out_tokens", max_out_tokens, "0 or more");
    REFUSE_IF(!out_tokens && max_out_tokens > 0, "out_tokens is NULL but max_out_tokens is above 0");
    REFUSE_IF(!n_out_tokens, "n_out_tokens is NULL; it receives how many tokens were written");
    START_PYTHON();
    vllm__tokens tokens = {prompt_tokens, n_prompt_tokens, out_tokens, max_out_tokens, 0};
    vllm_status status = vllm__py_complete_tokens(engine, &tokens, params, filled);
    *n_out_tokens = status == VLLM_OK ? tokens.n_out_tokens : 0;
    if (!out)
        vllm_completion_free(&unwanted);
    return leave_completion(status, filled);
}

VLLM_API vllm_status vllm_complete_stream(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                          vllm_token_callback callback, void* user_data)
{
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!prompt, "prompt is NULL");
    REFUSE_IF(!params, "params is NULL; fill a vllm_sampling_params with vllm_sampling_params_default()");
    REFUSE_IF(!callback, "callback is NULL; it receives the text");
    START_PYTHON();
    return leave(vllm__py_complete_stream(engine, prompt, params, callback, user_data));
}

VLLM_API vllm_status vllm_request_submit(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                         vllm_token_callback callback, void* user_data, vllm_request** out)
{
    if (out)
        *out = NULL;
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!prompt, "prompt is NULL");
    REFUSE_IF(!params, "params is NULL; fill a vllm_sampling_params with vllm_sampling_params_default()");
    REFUSE_IF(!callback, "callback is NULL; it receives the text");
    REFUSE_IF(!out, "out is NULL; it receives the request");
    START_PYTHON();
    vllm__text_call call = {callback, user_data};
    vllm_status status = vllm__py_request_submit(engine, prompt, params, &call, out);
    if (status != VLLM_OK)
        *out = NULL;
    return leave(status);
}

VLLM_API vllm_status vllm_request_cancel(vllm_request* request)
{
    REFUSE_IF(!request, "request is NULL");
    START_PYTHON();
    return leave(vllm__py_request_cancel(request));
}

VLLM_API vllm_status vllm_request_wait(vllm_request* request)
{
    REFUSE_IF(!request, "request is NULL");
    START_PYTHON();
    return leave(vllm__py_request_wait(request));
}

VLLM_API bool vllm_request_done(const vllm_request* request)
{
    bool is_done = false;
    if (!request)
        refuse(__func__, "request is NULL");
    else if (begin() == VLLM_OK && leave(vllm__py_request_done(request, &is_done)) != VLLM_OK)
        is_done = false;
    return is_done;
}

VLLM_API const char* vllm_request_error(const vllm_request* request)
{
    const char* text = "";
    if (!request)
        refuse(__func__, "request is NULL");
    else if (begin() == VLLM_OK && leave(vllm__py_request_error(request, &text)) != VLLM_OK)
        text = "";
    return text;
}

VLLM_API void vllm_request_free(vllm_request* request)
{
    if (request && begin() == VLLM_OK)
        leave(vllm__py_request_free(request));
}

VLLM_API vllm_status vllm_chat(vllm_engine* engine, const char* request_json, char** out_response_json)
{
    if (out_response_json)
        *out_response_json = NULL;
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!request_json, "request_json is NULL");
    REFUSE_IF(!out_response_json, "out_response_json is NULL; it receives the answer");
    START_PYTHON();
    return leave_text(vllm__py_chat(engine, request_json, out_response_json), out_response_json);
}

VLLM_API vllm_status vllm_chat_stream(vllm_engine* engine, const char* request_json, vllm_token_callback callback,
                                      void* user_data)
{
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!request_json, "request_json is NULL");
    REFUSE_IF(!callback, "callback is NULL; it receives the chunks");
    START_PYTHON();
    return leave(vllm__py_chat_stream(engine, request_json, callback, user_data));
}

VLLM_API vllm_status vllm_embed(vllm_engine* engine, const char* const* texts, int32_t n_texts,
                                vllm_embedding_result* out)
{
    if (out)
        memset(out, 0, sizeof *out);
    REFUSE_IF(!engine, "engine is NULL");
    REFUSE_IF(!texts, "texts is NULL");
    if (n_texts <= 0)
        return refuse_number(__func__, "n_texts", n_texts, "at least 1");
    REFUSE_IF(!out, "out is NULL; it receives the embeddings");
    START_PYTHON();
    vllm_status status = vllm__py_embed(engine, texts, n_texts, out);
    if (status != VLLM_OK)
        vllm_embedding_result_free(out);
    return leave(status);
}

VLLM_API int32_t vllm_server_main(int32_t argc, const char* const* argv)
{
    int32_t code = 1;
    if (argc < 0 || (argc > 0 && !argv))
        return refuse(__func__, "argc must not be negative, and argv not NULL when argc is above 0");
    if (begin() != VLLM_OK)
        return 1;
    vllm_status status = VLLM_ERR_RUNTIME;
    int stop_fd = vllm__take_signals();
    if (stop_fd >= 0) {
        status = vllm__py_server_main(argc, argv, stop_fd, &code);
        vllm__leave_signals();
    }
    leave(status);
    return status == VLLM_OK ? code : 1;
}
