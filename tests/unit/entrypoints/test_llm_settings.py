"""The keywords of `LLM`: refused by name before torch is imported or a file is opened."""

import subprocess
import sys

import pytest

from pyvllm.config.offload import OffloadConfig
from pyvllm.entrypoints.arguments import offload_from
from pyvllm.entrypoints.llm import LLM
from pyvllm.errors import InvalidArgument, VllmError

REFUSED = [
    ({"offload_confg": "{}"}, "LLM has no setting 'offload_confg' (did you mean offload_config?)"),
    ({"cpu_offload_gib": 1}, "LLM has no setting 'cpu_offload_gib' (did you mean cpu_offload_gb?)"),
    ({"tensor_parallel_size": 2}, "LLM has no setting 'tensor_parallel_size'"),
    ({"offload_config": {}, "cpu_offload_gb": 1}, "offload_config and cpu_offload_gb were both given"),
    ({"offload_config": "", "offload_group_size": 1}, "offload_config and offload_group_size were both given"),
    ({"offload_config": 8}, "offload_config must be JSON text, a dict or an OffloadConfig, got int"),
    ({"offload_config": '{"uva": {"cpu_offload_GB": 8}}'}, "uva.cpu_offload_GB"),
    ({"offload_config": {"uva": {"cpu_offload_gb": True}}}, "uva.cpu_offload_gb"),
    ({"cpu_offload_params": "mlp"}, "uva.cpu_offload_params must be an array of strings"),
    ({"cpu_offload_gb": None}, "uva.cpu_offload_gb"),
    (
        {"offload_group_size": 4, "offload_num_in_group": 5},
        "offload_num_in_group (5) must be <= offload_group_size (4)",
    ),
    ({"model": None}, "model must be the path of a model directory or of a GGUF file, got None"),
    ({"model": ""}, "model must be the path of a model directory or of a GGUF file, got ''"),
    ({"device": "tpu"}, "device must be one of"),
    ({"dtype": "int4"}, "dtype must be one of"),
    ({"max_model_len": 0}, "max_model_len must be an integer"),
    ({"gpu_memory_utilization": 0}, "gpu_memory_utilization must be in (0, 1]"),
    ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes must be an integer"),
    ({"kv_cache_memory_bytes": 4096, "num_gpu_blocks_override": 7}, "(7) and kv_cache_memory_bytes (4096) both"),
    ({"threads": 0}, "threads must be an integer"),
    ({"cpu_kernels": "sse2"}, "cpu_kernels must be one of auto, avx512, avx2, torch; got 'sse2'"),
    ({"gguf_weights": "packed"}, "gguf_weights must be one of auto, expanded, stored; got 'packed'"),
]


@pytest.mark.parametrize(("settings", "text"), REFUSED)
def test_bad_setting_is_refused_by_name_before_the_model_is_looked_for(settings, text):
    with pytest.raises(InvalidArgument) as refusal:
        LLM(**{"model": "/no/such/model", **settings})
    assert text in str(refusal.value)


def test_every_form_of_the_offload_settings_makes_the_same_configuration():
    document = {"uva": {"cpu_offload_gb": 2, "cpu_offload_params": ["mlp"]}}
    expected = OffloadConfig.from_dict(document)
    text = '{"uva": {"cpu_offload_params": ["mlp"], "cpu_offload_gb": 2.0}}'
    forms = [(document, {}), (text, {}), (expected, {}), (None, {"cpu_offload_gb": 2, "cpu_offload_params": {"mlp"}})]
    assert [offload_from(given, flat, str) for given, flat in forms] == [expected] * 4
    assert offload_from(None, {}, str) == OffloadConfig()


def test_refused_setting_imports_neither_torch_nor_numpy():
    program = (
        "import sys, pyvllm\n"
        "try: pyvllm.LLM('/no/such', offload_config='{\"uva\": 1}')\n"
        "except pyvllm.InvalidArgument: print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_refusals_are_value_errors_and_vllm_errors():
    assert issubclass(InvalidArgument, ValueError) and issubclass(InvalidArgument, VllmError)
