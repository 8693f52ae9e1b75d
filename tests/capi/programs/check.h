/* For the test programs: a claim that ends the program when it does not hold, and what most of them begin with. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vllm.h>

#define CHECK(claim) \
    do { \
        if (!(claim)) { \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #claim, vllm_last_error()); \
            exit(1); \
        } \
    } while (0)

/* A claim about a refusal: its status, and a part of its text. */
#define CHECK_REFUSED(call, expected, part) \
    do { \
        vllm_status refused_ = (call); \
        CHECK(refused_ == (expected)); \
        CHECK(strstr(vllm_last_error(), part)); \
    } while (0)

/* Load a model on the CPU, with every default. */
static inline vllm_engine* load_on_cpu(const char* path)
{
    vllm_engine* engine = NULL;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = path;
    params.device = VLLM_DEVICE_CPU;
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    CHECK(engine && strcmp(vllm_last_error(), "") == 0);
    return engine;
}

/* Exactly so many tokens, and the same ones every time. */
static inline vllm_sampling_params greedy(int max_tokens)
{
    vllm_sampling_params params = vllm_sampling_params_default();
    params.temperature = 0;
    params.max_tokens = max_tokens;
    params.ignore_eos = 1;
    return params;
}

#endif
