"""One tiny model, one server on it and the library beside it, for every test of this directory."""

import pytest

from pyvllm import LLM
from tests.server.commands import ServerProcess
from tests.tiny_models import write_tiny

KEY = "a key"
OFFLOAD = '{"uva": {"cpu_offload_gb": 0.0001}}'


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return str(write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="session")
def server(model):
    process = ServerProcess("--model", model, "--served-model-name", "tiny", "small", "--offload-config", OFFLOAD)
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
