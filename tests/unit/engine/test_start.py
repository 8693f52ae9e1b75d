"""A refusal is made without torch, and a load imports only what every request needs."""

import subprocess
import sys

import pytest

from tests.tiny_models import write_tiny

CODE = """
import sys
from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.start import load_engine
from pyvllm.errors import VllmError
document, model = sys.argv[1:]
try:
    load_engine(EngineConfig(model=model, device="cpu", offload=OffloadConfig.from_json(document)))
except VllmError as error:
    print(type(error).__name__, error)
print("torch" in sys.modules, "numpy" in sys.modules)
"""


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ('{"vllm_cpp": {"device_fit": {"weight_budget_bytes": 1000}}}', "DoesNotFit"),
        ('{"prefetch": {"offload_group_size": 99}}', "InvalidArgument"),
        ('{"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["nope"]}}', "InvalidArgument"),
    ],
)
def test_a_load_that_is_refused_imports_neither_torch_nor_numpy(tmp_path, document, kind):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    done = subprocess.run(
        [sys.executable, "-c", CODE, document, str(model)], capture_output=True, text=True, check=True
    )
    first, last = done.stdout.splitlines()
    assert first.startswith(kind)
    assert last == "False False"


def test_a_model_that_is_not_there_is_refused_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, "", str(tmp_path / "no")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("text", ["{}", '{"model": '])
def test_a_tokenizer_is_refused_without_torch(tmp_path, text):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    (model / "tokenizer.json").write_text(text)
    done = subprocess.run([sys.executable, "-c", CODE, "", str(model)], capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    assert first.startswith("FormatError tokenizer.json: ")
    assert last == "False False"


LOADED = """
import sys
from pyvllm.config.engine import EngineConfig
from pyvllm.engine.start import load_engine
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams
engine = load_engine(EngineConfig(model=sys.argv[1], device="cpu"))
some = {"llguidance", "jinja2", "starlette", "uvicorn", "prometheus_client", "transformers", "safetensors", "gguf"}
engine.generate("a", SamplingParams(max_tokens=1))
print(sorted(some & set(sys.modules)))
choice = StructuredOutputsParams(choice=("yes", "no"))
print(engine.generate("a", SamplingParams(max_tokens=4, structured_outputs=choice)).text)
print(sorted(some & set(sys.modules)))
"""


def test_what_only_some_requests_need_is_imported_by_the_first_of_them(tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    done = subprocess.run([sys.executable, "-c", LOADED, str(model)], capture_output=True, text=True, check=True)
    before, text, after = done.stdout.splitlines()
    assert before == "[]"
    assert text in ("yes", "no") and after == "['llguidance']"
