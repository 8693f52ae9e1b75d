"""One tiny model, one server on it and the library beside it, for every test of this directory."""

import json

import pytest

from pyvllm import LLM
from tests.server.commands import ServerProcess
from tests.tiny_models import write_tiny

KEY = "a key"
OFFLOAD = '{"uva": {"cpu_offload_gb": 0.0001}}'
#: Short, because the tiny model has one token a byte.
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content ~ '\n' }}{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name ~ '\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    directory = write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("llama"))
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return str(directory)


@pytest.fixture(scope="session")
def server(model):
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    process = ServerProcess(
        "--model", model, "--served-model-name", "tiny", "small", "--offload-config", OFFLOAD, *flags
    )
    yield process
    assert process.stop() == 0


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def llm(model):
    with LLM(model, offload_config=OFFLOAD, threads=1) as llm:
        yield llm
