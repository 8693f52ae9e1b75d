/*
 * What C calls in pyvllm/capi.py. build_ffi.py gives these declarations to cffi as extern "Python", which makes a
 * static function of each. Arguments have passed the checks in api.c.
 */
static vllm_status vllm__py_engine_load(const vllm_model_params* params, const char* options_json,
                                        vllm_progress_callback progress, void* user_data, vllm_engine** out);
static vllm_status vllm__py_engine_free(vllm_engine* engine);
static vllm_status vllm__py_engine_offload_report(const vllm_engine* engine, char** out_json);
static vllm_status vllm__py_offload_plan(const vllm_model_params* params, const char* options_json, char** out_json);
static vllm_status vllm__py_complete(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                     vllm_completion* out);
static vllm_status vllm__py_complete_tokens(vllm_engine* engine, vllm__tokens* tokens,
                                            const vllm_sampling_params* params, vllm_completion* out);
static vllm_status vllm__py_complete_stream(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                            vllm_token_callback callback, void* user_data);
static vllm_status vllm__py_request_submit(vllm_engine* engine, const char* prompt, const vllm_sampling_params* params,
                                           vllm__text_call* call, vllm_request** out);
static vllm_status vllm__py_request_cancel(vllm_request* request);
static vllm_status vllm__py_request_wait(vllm_request* request);
static vllm_status vllm__py_request_done(const vllm_request* request, bool* out);
static vllm_status vllm__py_request_error(const vllm_request* request, const char** out);
static vllm_status vllm__py_request_free(vllm_request* request);
static vllm_status vllm__py_chat(vllm_engine* engine, const char* request_json, char** out_json);
static vllm_status vllm__py_chat_stream(vllm_engine* engine, const char* request_json, vllm_token_callback callback,
                                        void* user_data);
static vllm_status vllm__py_embed(vllm_engine* engine, const char* const* texts, int32_t n_texts,
                                  vllm_embedding_result* out);
static vllm_status vllm__py_server_main(int32_t argc, const char* const* argv, int stop_fd, int32_t* out);
