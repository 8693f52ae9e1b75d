/*
 * Continue a text with a model, or show a model running on a device that is too small for it.
 *
 *     complete MODEL_PATH [--offload-config JSON] [--prompt TEXT] [--max-tokens N] [--dtype NAME]
 *     complete MODEL_PATH demo [--prompt TEXT] [--max-tokens N] [--dtype NAME]
 *
 * Build it with: cc complete.c -o complete $(vllm-config --cflags --libs)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vllm.h>

/* What the command line asks for. */
typedef struct settings {
    const char* model_path;
    const char* offload_config;
    const char* prompt;
    const char* dtype;
    int32_t max_tokens;
    bool is_demo;
} settings;

/* Say why the last call failed. Returns the exit status of a failed program. */
static int fail(const char* what)
{
    fprintf(stderr, "complete: %s: %s\n", what, vllm_last_error());
    return 1;
}

/* ---- one load, one text ---- */

static vllm_status load(const settings* chosen, const char* offload_config, vllm_engine** engine)
{
    char options[64];
    vllm_model_params params = vllm_model_params_default();
    params.model_path = chosen->model_path;
    params.offload_config = offload_config;
    snprintf(options, sizeof options, "{\"dtype\": \"%s\"}", chosen->dtype);
    return vllm_engine_load_with_options(&params, options, NULL, NULL, engine);
}

/* Print text as it arrives. */
static bool print_delta(const char* delta_text, bool finished, void* user_data)
{
    (void)user_data;
    fputs(delta_text, stdout);
    if (finished)
        putchar('\n');
    fflush(stdout);
    return true;
}

static vllm_status print_completion(const settings* chosen, vllm_engine* engine)
{
    vllm_sampling_params params = vllm_sampling_params_default();
    params.temperature = 0.0f; /* greedy: the same text every time */
    params.max_tokens = chosen->max_tokens;
    printf("%s", chosen->prompt);
    fflush(stdout);
    return vllm_complete_stream(engine, chosen->prompt, &params, print_delta, NULL);
}

static int complete(const settings* chosen)
{
    vllm_engine* engine = NULL;
    if (load(chosen, chosen->offload_config, &engine) != VLLM_OK)
        return fail("cannot load the model");
    int failed = print_completion(chosen, engine) == VLLM_OK ? 0 : fail("cannot complete");
    vllm_engine_free(engine);
    return failed;
}

/* ---- where the bytes are ---- */

/* Find the number `key` inside the object `section` of a document. Returns -1 where it is null or absent. */
static long long number_at(const char* document, const char* section, const char* key)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\": {", section);
    const char* start = strstr(document, wanted);
    const char* end = start ? strchr(start, '}') : NULL;
    snprintf(wanted, sizeof wanted, "\"%s\": ", key);
    const char* found = start ? strstr(start, wanted) : NULL;
    if (!found || found > end || strncmp(found + strlen(wanted), "null", 4) == 0)
        return -1;
    return strtoll(found + strlen(wanted), NULL, 10);
}

static void print_cell(long long number)
{
    if (number < 0)
        printf("%14s", "-");
    else
        printf("%14lld", number);
}

static int print_report(const vllm_engine* engine, long long device_budget)
{
    static const char* const rows[][2] = {
        {"device", "device_bytes"}, {"host", "host_bytes"}, {"streamed", "streamed_bytes"}, {"buffers", "buffer_bytes"}};
    char* report = NULL;
    if (vllm_engine_offload_report(engine, &report) != VLLM_OK)
        return fail("cannot get the report");
    printf("%-10s%14s%14s%14s\n", "bytes", "asked", "planned", "measured");
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        printf("%-10s", rows[row][0]);
        print_cell(row == 0 ? device_budget : number_at(report, "asked", rows[row][1]));
        print_cell(number_at(report, "planned", rows[row][1]));
        print_cell(number_at(report, "measured", rows[row][1]));
        putchar('\n');
    }
    vllm_string_free(report);
    return 0;
}

/* ---- the demonstration ---- */

/* Say what comes next, before the library's own lines on stderr. */
static void print_title(const char* title, const char* config)
{
    printf("\n%s: %s\n", title, config);
    fflush(stdout);
}

/* Ask the library how many bytes of weights the model has. Returns -1 after saying why, if it cannot tell. */
static long long weight_bytes(const settings* chosen, const char* options)
{
    vllm_model_params params = vllm_model_params_default();
    char* plan = NULL;
    params.model_path = chosen->model_path;
    if (vllm_offload_plan(&params, options, &plan) != VLLM_OK) {
        fail("cannot plan");
        return -1;
    }
    long long bytes = number_at(plan, "weights", "bytes");
    vllm_string_free(plan);
    return bytes;
}

/* Step 1: no offload. Copies the smallest budget in GiB that the refusal names; false if it was not refused so. */
static bool show_refusal(const settings* chosen, long long device_bytes, char* gb, size_t room)
{
    static const char remedy[] = "the smallest cpu_offload_gb that fits is ";
    char config[256];
    vllm_engine* engine = NULL;
    snprintf(config, sizeof config, "{\"vllm_cpp\": {\"device_fit\": {\"weight_budget_bytes\": %lld}}}", device_bytes);
    print_title("(1) without offload", config);
    vllm_status status = load(chosen, config, &engine);
    if (status == VLLM_OK) {
        fprintf(stderr, "complete: a model larger than the device was loaded\n");
        vllm_engine_free(engine);
        return false;
    }
    printf("%s: %s\n", vllm_status_string(status), vllm_last_error());
    const char* found = strstr(vllm_last_error(), remedy);
    if (!found)
        return false;
    found += sizeof remedy - 1;
    snprintf(gb, room, "%.*s", (int)strspn(found, "0123456789.e-"), found);
    return true;
}

/* Steps 2 and 3: load with an offload, write the text, say where the bytes are. */
static int show_offload(const settings* chosen, const char* title, const char* config, long long device_bytes)
{
    vllm_engine* engine = NULL;
    print_title(title, config);
    if (load(chosen, config, &engine) != VLLM_OK)
        return fail("cannot load the model");
    int failed = print_completion(chosen, engine) == VLLM_OK ? 0 : fail("cannot complete");
    if (!failed)
        failed = print_report(engine, device_bytes);
    vllm_engine_free(engine);
    return failed;
}

/* Write the prefetch configuration that streams the fewest of every four layers and fits, each of them copied as early
 * as its group allows; a plan reads no weight. */
static bool find_prefetch(const settings* chosen, const char* options, long long device_bytes, char* config, size_t room)
{
    enum { GROUP_SIZE = 4 };
    vllm_model_params params = vllm_model_params_default();
    params.model_path = chosen->model_path;
    params.offload_config = config;
    for (int streamed = 1; streamed <= GROUP_SIZE; streamed++) {
        char* plan = NULL;
        snprintf(config, room,
                 "{\"prefetch\": {\"offload_group_size\": %d, \"offload_num_in_group\": %d, "
                 "\"offload_prefetch_step\": %d}, \"vllm_cpp\": {\"device_fit\": {\"weight_budget_bytes\": %lld}}}",
                 GROUP_SIZE, streamed, streamed, device_bytes);
        vllm_status status = vllm_offload_plan(&params, options, &plan);
        vllm_string_free(plan);
        if (status == VLLM_OK)
            return true;
    }
    return false;
}

/* Step 4: a document that contradicts itself is refused before the path is looked at. */
static int show_document_error(const settings* chosen)
{
    static const char config[] = "{\"prefetch\": {\"offload_group_size\": 4, \"offload_num_in_group\": 5}}";
    vllm_engine* engine = NULL;
    print_title("(4) a document that contradicts itself", config);
    vllm_status status = load(chosen, config, &engine);
    printf("%s: %s\n", vllm_status_string(status), vllm_last_error());
    vllm_engine_free(engine);
    return status == VLLM_ERR_INVALID_ARGUMENT ? 0 : 1;
}

static int demonstrate(const settings* chosen)
{
    char options[64], config[256], gb[32];
    snprintf(options, sizeof options, "{\"dtype\": \"%s\"}", chosen->dtype);
    long long bytes = weight_bytes(chosen, options), device_bytes = bytes / 10 * 6;
    if (bytes < 0)
        return 1;
    printf("The model has %lld bytes of weights. The device is given %lld.\n", bytes, device_bytes);
    if (!show_refusal(chosen, device_bytes, gb, sizeof gb))
        return 1;
    snprintf(config, sizeof config,
             "{\"uva\": {\"cpu_offload_gb\": %s}, \"vllm_cpp\": {\"device_fit\": {\"weight_budget_bytes\": %lld}}}",
             gb, device_bytes);
    if (show_offload(chosen, "(2) uva, with that budget", config, device_bytes) != 0)
        return 1;
    if (!find_prefetch(chosen, options, device_bytes, config, sizeof config))
        return fail("no prefetch configuration fits");
    if (show_offload(chosen, "(3) prefetch", config, device_bytes) != 0)
        return 1;
    return show_document_error(chosen);
}

/* ---- the command line ---- */

/* Read one option and its value. Returns whether it is known and well formed. */
static bool read_option(settings* chosen, const char* name, const char* value)
{
    char* end = NULL;
    if (strcmp(name, "--offload-config") == 0)
        chosen->offload_config = value;
    else if (strcmp(name, "--prompt") == 0)
        chosen->prompt = value;
    else if (strcmp(name, "--dtype") == 0)
        chosen->dtype = value;
    else if (strcmp(name, "--max-tokens") == 0)
        chosen->max_tokens = (int32_t)strtol(value, &end, 10);
    else
        return false;
    return !end || (end != value && *end == '\0');
}

int main(int argc, char** argv)
{
    settings chosen = {NULL, NULL, "Gravity is", "auto", 40, false};
    int next = 2;
    if (argc > 1)
        chosen.model_path = argv[1];
    if (argc > 2 && strcmp(argv[2], "demo") == 0) {
        chosen.is_demo = true;
        next = 3;
    }
    while (next + 1 < argc && read_option(&chosen, argv[next], argv[next + 1]))
        next += 2;
    if (!chosen.model_path || next < argc || (chosen.is_demo && chosen.offload_config)) {
        fprintf(stderr,
                "usage: complete MODEL_PATH [--offload-config JSON] [--prompt TEXT] [--max-tokens N] [--dtype NAME]\n"
                "       complete MODEL_PATH demo [--prompt TEXT] [--max-tokens N] [--dtype NAME]\n");
        return 2;
    }
    return chosen.is_demo ? demonstrate(&chosen) : complete(&chosen);
}
