"""pyvllm/clib.py agrees with vllm.h, and its engine does what the library does."""

import ctypes
import json
from ctypes import POINTER

import pytest

from pyvllm import clib
from tests.capi import header
from tests.capi.test_hosts import script
from tests.capi.toolchain import HEADER

STRUCTS = {
    "vllm_model_params": clib.ModelParams,
    "vllm_sampling_params": clib.SamplingParams,
    "vllm_completion": clib.Completion,
    "vllm_embedding_result": clib.EmbeddingResult,
}
CALLBACKS = {
    "vllm_token_callback": clib.TokenCallback,
    "vllm_logits_processor": clib.LogitsProcessor,
    "vllm_progress_callback": clib.ProgressCallback,
    "vllm_log_callback": clib.LogCallback,
}
#: What each C type is in ctypes. A string or engine that the caller must free stays an address.
CTYPES = {
    "void": None, "bool": ctypes.c_bool, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64, "float": ctypes.c_float, "double": ctypes.c_double, "vllm_status": ctypes.c_int32,
    "const char*": ctypes.c_char_p, "char*": ctypes.c_void_p, "void*": ctypes.c_void_p,
    "char**": POINTER(ctypes.c_void_p), "const char* const*": POINTER(ctypes.c_char_p),
    "float*": POINTER(ctypes.c_float), "int32_t*": POINTER(ctypes.c_int32), "const int32_t*": POINTER(ctypes.c_int32),
    "vllm_engine*": ctypes.c_void_p, "const vllm_engine*": ctypes.c_void_p,
    "vllm_request*": ctypes.c_void_p, "const vllm_request*": ctypes.c_void_p,
    "vllm_request**": POINTER(ctypes.c_void_p), "vllm_embedding_result*": POINTER(clib.EmbeddingResult),
    "vllm_engine**": POINTER(ctypes.c_void_p), "vllm_completion*": POINTER(clib.Completion),
    "const vllm_model_params*": POINTER(clib.ModelParams), "vllm_model_params": clib.ModelParams,
    "const vllm_sampling_params*": POINTER(clib.SamplingParams), "vllm_sampling_params": clib.SamplingParams,
    **CALLBACKS,
}  # fmt: skip


def test_the_structures_have_the_fields_of_the_header():
    declared = {name: [(field, CTYPES[kind]) for field, kind in fields] for name, fields in header.structs().items()}
    assert {name: list(struct._fields_) for name, struct in STRUCTS.items()} == declared


def test_r129_the_structures_have_the_sizes_of_abi_21():
    assert [ctypes.sizeof(struct) for struct in STRUCTS.values()] == [128, 136, 24, 24]
    assert clib.ModelParams.limit_mm_per_prompt.offset == 120
    assert clib.SamplingParams.logits_processor_user_data.offset == 128


def test_r126_every_function_has_the_signature_of_the_header():
    declared = {
        name: (CTYPES[result], tuple(CTYPES[kind] for _, kind in parameters))
        for name, (result, parameters) in header.functions().items()
    }
    assert dict(clib.SIGNATURES) == declared


def test_the_callbacks_have_the_signatures_of_the_header():
    declared = {
        name: (CTYPES[result], tuple(CTYPES[kind] for _, kind in parameters))
        for name, (result, parameters) in header.callbacks().items()
    }
    assert {name: (kind._restype_, kind._argtypes_) for name, kind in CALLBACKS.items()} == declared


def test_the_module_names_the_abi_of_the_header():
    assert header.enums()["vllm_status"]["VLLM_OK"] == clib.OK
    assert f"#define VLLM_ABI_VERSION {clib.ABI_VERSION}\n" in HEADER.read_text()


USE = """
    import gc, json, sys
    from pyvllm import clib
    seen, deltas, lines = [], [], []

    def collect(done, planned, name):
        gc.collect()
        seen.append([done, planned])
        return True

    def keep(delta, finished):
        gc.collect()
        deltas.append(delta)
        return True

    library = clib.Library()
    library.set_log(lambda level, text: lines.append([level, text]))
    gc.collect()
    offload = {"uva": {"cpu_offload_gb": 1e-4}}
    sampling = {"temperature": 0, "max_tokens": 10, "ignore_eos": 1}
    with (
        clib.Engine(sys.argv[1], library=library, device=1, progress=collect) as plain,
        clib.Engine(sys.argv[1], library=library, device=1, offload_config=offload, options={"threads": 1}) as moved,
    ):
        plain.stream("AB", keep, **sampling)
        reports = [engine.offload_report() for engine in (plain, moved)]
        texts = [engine.complete("AB", **sampling) for engine in (plain, moved)]
        tokens = [engine.complete_tokens([65, 66], **sampling) for engine in (plain, moved)]
        stopped = plain.complete("AB", stop=[texts[0][-3:-1]], **sampling)
        seeded = [plain.complete_tokens([65], seed=5, max_tokens=8, ignore_eos=1) for _ in range(2)]
        greedy = [plain.complete_tokens([65], max_tokens=8, ignore_eos=1, **more) for more in
                  ({"temperature": 0}, {"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6})]
    json.dump({"seen": seen, "deltas": deltas, "lines": lines, "reports": reports, "texts": texts, "tokens": tokens,
               "stopped": stopped, "seeded": seeded, "greedy": greedy}, sys.stdout)
"""


@pytest.fixture(scope="module")
def used(tiny):
    """Give what a program saw that uses two engines through clib."""
    done = script(USE, tiny)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_r133_collecting_garbage_inside_a_callback_loses_no_callback(used):
    done, planned = used["seen"][-1]
    assert done == planned == used["reports"][0]["weights"]["bytes"]
    assert "".join(used["deltas"]) == used["texts"][0]


def test_r101_two_engines_with_different_configurations_live_in_one_process(used):
    plain, moved = used["reports"]
    assert (plain["enabled"], moved["enabled"]) == (False, True)
    assert plain["measured"]["host_bytes"] == 0 < moved["measured"]["host_bytes"] == moved["planned"]["host_bytes"]
    assert used["tokens"][0] == used["tokens"][1]
    assert used["texts"][0] == used["texts"][1]


def test_the_sampling_fields_act(used):
    assert len(used["tokens"][0]) == 10
    assert used["stopped"] == used["texts"][0].partition(used["texts"][0][-3:-1])[0] != used["texts"][0]
    assert used["seeded"][0] == used["seeded"][1]
    assert used["greedy"].count(used["greedy"][0]) == 4


def test_lines_go_to_the_callback_and_not_to_stderr(used):
    assert used["stderr"] == ""
    assert any(level == 20 and text.startswith("[vllm.cpp] loaded LlamaForCausalLM") for level, text in used["lines"])


def test_what_a_callback_raises_is_raised_by_the_call(tiny):
    text = """
        import sys
        from pyvllm import clib

        def fail(*_):
            raise KeyError("mine")

        def claim(call):
            try:
                call()
            except KeyError as error:
                return error.args == ("mine",)

        assert claim(lambda: clib.Engine(sys.argv[1], device=1, progress=fail))
        with clib.Engine(sys.argv[1], device=1) as engine:
            assert claim(lambda: engine.stream("A", fail))
            assert engine.complete("A") is not None
    """
    done = script(text, tiny)
    assert done.returncode == 0, done.stderr


def test_an_unknown_field_is_a_type_error():
    text = """
        from pyvllm import clib
        try:
            clib.Library().offload_plan(dtype="auto")
        except TypeError as error:
            print(error)
    """
    assert script(text).stdout == "ModelParams has no field 'dtype'\n"
