"""Every function with every pointer NULL, one at a time and all together: a program generated from the header."""

from tests.capi import header
from tests.capi.toolchain import compile_program, succeed

MAY_BE_NULL = {
    ("vllm_engine_load_with_options", "options_json"),
    ("vllm_engine_load_with_options", "progress"),
    ("vllm_engine_load_with_options", "user_data"),
    ("vllm_offload_plan", "options_json"),
    ("vllm_complete_tokens", "out"),
    ("vllm_complete_stream", "user_data"),
    ("vllm_request_submit", "user_data"),
    ("vllm_chat_stream", "user_data"),
}
VALUES = {
    "const vllm_model_params*": "&model",
    "const vllm_sampling_params*": "&sampling",
    "vllm_engine*": "engine",
    "const vllm_engine*": "engine",
    "vllm_engine**": "&engine_out",
    "vllm_request*": "request",
    "vllm_request**": "&request_out",
    "vllm_embedding_result*": "&embeddings",
    "const char* const*": "texts",
    "const char*": '"A"',
    "char**": "&text_out",
    "vllm_completion*": "&completion",
    "const int32_t*": "tokens",
    "int32_t*": "tokens",
    "int32_t": "1",
    "vllm_token_callback": "on_text",
    "vllm_progress_callback": "on_progress",
    "void*": "tokens",
}
PROGRAM = """
#include "check.h"
static bool on_text(const char* delta_text, bool finished, void* user_data)
{ (void)delta_text; (void)finished; (void)user_data; return true; }
static bool on_progress(int64_t done, int64_t planned, const char* name, void* user_data)
{ (void)done; (void)planned; (void)name; (void)user_data; return true; }
int main(void)
{
    vllm_model_params model = vllm_model_params_default();
    vllm_sampling_params sampling = vllm_sampling_params_default();
    vllm_engine *engine = (vllm_engine*)&model, *engine_out = NULL;
    vllm_request *request = (vllm_request*)&model, *request_out = NULL;
    vllm_embedding_result embeddings;
    const char* texts[1] = {"A"};
    vllm_completion completion;
    char* text_out = NULL;
    int32_t tokens[4] = {65, 66, 67, 68};
    (void)on_text;
    (void)on_progress;
    (void)request;
CALLS
    return 0;
}
"""


def _calls():
    """Yield a line for each status function and pointer, in which that pointer is NULL and the others are not."""
    for function, (result, parameters) in header.functions().items():
        if result != "vllm_status" or function == "vllm_status_string":
            continue
        pointers = [name for name, kind in parameters if VALUES[kind] != "1"]
        for missing in [*([name] for name in pointers if (function, name) not in MAY_BE_NULL), pointers]:
            given = ["NULL" if name in missing else VALUES[kind] for name, kind in parameters]
            refused = missing[0] if len(missing) == 1 else "NULL"
            yield f'    CHECK_REFUSED({function}({", ".join(given)}), VLLM_ERR_INVALID_ARGUMENT, "{refused}");'
            yield "    CHECK(!engine_out && !text_out && !request_out);"


def test_a_null_pointer_is_refused_by_name_before_python_is_started(tmp_path):
    source = tmp_path / "nulls.c"
    calls = list(_calls())
    source.write_text(PROGRAM.replace("CALLS", "\n".join(calls)))
    program = compile_program(source, tmp_path / "nulls")
    assert len(calls) > 60
    assert succeed(program, env={"VLLM_PYTHON_HOME": "/nonexistent"}) == ""


def test_functions_without_a_status_take_null(tmp_path):
    source = tmp_path / "frees.c"
    void = [name for name, (result, _) in header.functions().items() if result == "void" and name != "vllm_log_set"]
    calls = "".join(f"{name}(NULL);" for name in void)
    calls += 'CHECK(!vllm_request_done(NULL) && !*vllm_request_error(NULL) && strstr(vllm_last_error(), "is NULL"));'
    calls += "CHECK(vllm_server_main(1, NULL) == 1);"
    source.write_text(f'#include "check.h"\nint main(void) {{ {calls} vllm_log_set(NULL, NULL); return 0; }}\n')
    assert len(void) == 5
    assert succeed(compile_program(source, tmp_path / "frees")) == ""
