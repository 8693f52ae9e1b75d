/* See what an offload will do before a weight is read, then load exactly that.
 *
 *     cc plan_then_load.c $(vllm-config --cflags --libs) -o plan_then_load
 *     ./plan_then_load MODEL WEIGHT_BYTES
 *
 * MODEL is a Hugging Face directory or a GGUF file. WEIGHT_BYTES is what the device may hold of its weights; the offload
 * is chosen to fit. The plan and the report are printed as they come: docs/plan.md describes them. */
#include <stdbool.h>
#include <stdio.h>
#include <vllm.h>

static int fail(const char* what)
{
    fprintf(stderr, "plan_then_load: %s: %s\n", what, vllm_last_error());
    return 1;
}

/* Say how far the load is, once for each weight; false would cancel it. */
static bool on_progress(int64_t bytes_done, int64_t bytes_planned, const char* name, void* user_data)
{
    (void)user_data;
    fprintf(stderr, "%lld of %lld bytes  %s\n", (long long)bytes_done, (long long)bytes_planned, name);
    return true;
}

static int load_and_report(const vllm_model_params* params)
{
    vllm_engine* engine = NULL;
    char* report = NULL;
    if (vllm_engine_load_with_options(params, NULL, on_progress, NULL, &engine) != VLLM_OK)
        return fail("cannot load");
    int failed = vllm_engine_offload_report(engine, &report) == VLLM_OK ? 0 : fail("cannot report");
    if (!failed)
        printf("%s\n", report);
    vllm_string_free(report);
    vllm_engine_free(engine);
    return failed;
}

int main(int argc, char** argv)
{
    vllm_model_params params = vllm_model_params_default();
    char config[128];
    char* plan = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL WEIGHT_BYTES\n", argv[0]);
        return 2;
    }
    snprintf(config, sizeof config,
             "{\"vllm_cpp\": {\"device_fit\": {\"weight_budget_bytes\": %.20s, \"auto\": true}}}", argv[2]);
    params.model_path = argv[1];
    params.offload_config = config;
    if (vllm_offload_plan(&params, NULL, &plan) != VLLM_OK)
        return fail("cannot plan");
    printf("%s\n", plan);
    vllm_string_free(plan);
    return load_and_report(&params);
}
