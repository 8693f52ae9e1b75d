/* Chat from C. Usage: chat MODEL, a model with a chat template */
#include "check.h"

static const char* const REQUEST =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}], \"temperature\": 0, \"max_tokens\": 8, "
    "\"ignore_eos\": true, \"stream_options\": null}";

static bool hear(const char* delta_text, bool finished, void* user_data)
{
    int* calls = (int*)user_data;
    CHECK(strstr(delta_text, "\"chat.completion.chunk\"") && delta_text[0] == '{');
    CHECK(calls[1] == 0);
    calls[0]++;
    calls[1] += finished;
    CHECK(!finished || strstr(delta_text, "\"finish_reason\": \"length\""));
    return calls[0] != calls[2];
}

int main(int argc, char** argv)
{
    char* answer = NULL;
    int calls[3] = {0, 0, 0}, stopped[3] = {0, 0, 2};
    vllm_engine* engine = NULL;
    vllm_model_params params = vllm_model_params_default();
    params.model_path = argv[argc - 1];
    params.device = VLLM_DEVICE_CPU;
    CHECK(vllm_engine_load(&params, &engine) == VLLM_OK);
    CHECK(vllm_chat(engine, REQUEST, &answer) == VLLM_OK);
    CHECK(strstr(answer, "\"object\": \"chat.completion\"") && strstr(answer, "\"completion_tokens\": 8"));
    vllm_string_free(answer);
    CHECK(vllm_chat_stream(engine, REQUEST, hear, calls) == VLLM_OK);
    CHECK(calls[0] > 2 && calls[1] == 1 && strcmp(vllm_last_error(), "") == 0);
    CHECK(vllm_chat_stream(engine, REQUEST, hear, stopped) == VLLM_OK);
    CHECK(stopped[0] == 2 && stopped[1] == 0);
    CHECK_REFUSED(vllm_chat(engine, "{", &answer), VLLM_ERR_INVALID_ARGUMENT, "not valid JSON");
    CHECK(!answer);
    CHECK_REFUSED(vllm_chat(engine, "{\"messages\": []}", &answer), VLLM_ERR_INVALID_ARGUMENT, "messages");
    CHECK_REFUSED(vllm_chat_stream(engine, "{\"messages\": 1}", hear, calls), VLLM_ERR_INVALID_ARGUMENT, "messages");
    CHECK_REFUSED(vllm_chat((vllm_engine*)argv, REQUEST, &answer), VLLM_ERR_INVALID_ARGUMENT, "not a live engine");
    vllm_engine_free(engine);
    return 0;
}
