/* Opened with RTLD_LOCAL by a program that is not linked to it, as most FFIs do. Usage: local LIBRARY MODEL */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <vllm.h>

/* dlsym gives a data pointer; POSIX lets it be read as a function pointer. */
#define FIND(name) *(void**)&name = dlsym(library, "vllm_" #name)

int main(int argc, char** argv)
{
    vllm_model_params (*model_params_default)(void);
    vllm_sampling_params (*sampling_params_default)(void);
    vllm_status (*engine_load)(const vllm_model_params*, vllm_engine**);
    vllm_status (*complete)(vllm_engine*, const char*, const vllm_sampling_params*, vllm_completion*);
    const char* (*last_error)(void);
    void* library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FIND(model_params_default);
    FIND(sampling_params_default);
    FIND(engine_load);
    FIND(complete);
    FIND(last_error);
    vllm_model_params params = model_params_default();
    vllm_sampling_params sampling = sampling_params_default();
    vllm_engine* engine = NULL;
    vllm_completion out;
    params.model_path = argv[2];
    params.device = VLLM_DEVICE_CPU;
    if (engine_load(&params, &engine) != VLLM_OK || complete(engine, "A", &sampling, &out) != VLLM_OK) {
        fprintf(stderr, "%s\n", last_error());
        return 1;
    }
    dlclose(library);
    return complete(engine, "A", &sampling, &out) == VLLM_OK ? 0 : 1; /* dlclose frees nothing */
}
