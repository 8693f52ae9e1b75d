"""What a load keeps of a model's vocabulary once its tokenizer is built."""

import gc
import tracemalloc
from dataclasses import replace

import gguf
import numpy as np
import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.engine.model_tokenizer import take_tokenizer
from pyvllm.engine.preview import prepare
from pyvllm.errors import ModelLoadError
from pyvllm.model_loader import gguf as container
from pyvllm.model_loader.checkpoint import open_model
from pyvllm.tokenizer.chat_template_files import load_chat_templates
from tests.tiny_gguf import write_gguf
from tests.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, write_tiny


@pytest.fixture
def model(tmp_path):
    return str(write_gguf(write_tiny("LlamaForCausalLM", tmp_path / "m"), tmp_path / "m.gguf"))


def config(model):
    return EngineConfig(model=model, device="cpu", offload=OffloadConfig.from_json(None))


def test_a_loaded_engine_keeps_the_tokens_that_a_key_names_and_no_list(model):
    engine = LLMEngine.load(config(model))
    kept = engine.prepared.source.gguf_metadata
    engine.close()
    assert not [key for key, value in kept.items() if isinstance(value, list)]
    assert kept["tokenizer.ggml.tokens"] == {BOS_TOKEN_ID: "<s>", EOS_TOKEN_ID: "</s>"}


def test_a_chat_template_writes_the_same_tokens_after_a_load_as_before(model):
    source = open_model(model)
    before = load_chat_templates(None, source.gguf_metadata).tokens
    assert before == {"bos_token": "<s>", "eos_token": "</s>"}
    assert load_chat_templates(None, source.without_headers().gguf_metadata).tokens == before


@pytest.mark.parametrize("named", [-1, 10**9, "x", [1], None])
def test_a_key_that_names_no_token_gives_a_template_none(model, named):
    source = open_model(model)
    source = replace(source, gguf_metadata={**source.gguf_metadata, "tokenizer.ggml.bos_token_id": named})
    for metadata in (source.gguf_metadata, source.without_headers().gguf_metadata):
        assert load_chat_templates(None, metadata).tokens == {"eos_token": "</s>"}


def _held_by_the_header():
    """Bytes of live Python objects that reading a GGUF header made."""
    gc.collect()
    mine = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, container.__file__)])
    return sum(trace.size for trace in mine.traces)


def test_the_strings_of_a_large_vocabulary_are_gone_once_the_lists_are_dropped(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "other")
    writer.add_token_list([f"token {number}" for number in range(20_000)])
    writer.add_token_merges([f"left{number} right{number}" for number in range(20_000)])
    writer.add_tensor("x", np.zeros(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tracemalloc.start()
    try:
        source = open_model(str(tmp_path / "m.gguf"))
        assert _held_by_the_header() > 2_000_000
        source = source.without_headers()
        assert _held_by_the_header() < 20_000
    finally:
        tracemalloc.stop()


def test_a_tokenizer_that_is_refused_leaves_no_file_open(tmp_path):
    directory = write_tiny("LlamaForCausalLM", tmp_path / "m")
    (directory / "tokenizer.json").unlink()
    prepared = prepare(config(str(directory)))
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        take_tokenizer(prepared)
    info = next(iter(prepared.checkpoint.tensors.values()))
    with pytest.raises((ValueError, IndexError)):
        prepared.checkpoint.read_into(info, 0, memoryview(bytearray(1)))
