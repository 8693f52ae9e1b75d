"""Programs are compiled once a session, and share one tiny model."""

import pytest

from tests.capi.toolchain import PROGRAMS, compile_program
from tests.tiny_models import write_tiny


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Give the compiled form of `programs/<name>.c`."""
    directory, compiled = tmp_path_factory.mktemp("programs"), {}

    def give(name):
        if name not in compiled:
            compiled[name] = compile_program(PROGRAMS / f"{name}.c", directory / name)
        return compiled[name]

    return give


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A Llama of two layers in float32, with one token a byte."""
    return write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("tiny") / "model", num_hidden_layers=2)
