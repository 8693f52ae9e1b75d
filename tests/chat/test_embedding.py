"""Embeddings: the vectors that transformers' hidden states give, and which models give them."""

import openai
import pytest
import torch
import transformers

from pyvllm import LLM
from pyvllm.errors import FormatError, InvalidArgument, ModelLoadError
from tests.chat.models import change, write_headless, write_pooled
from tests.server.commands import ServerProcess
from tests.tiny_models import write_tiny

TEXTS = ["a text", "another one, longer than the first", "ünï"]
LAST = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


def expected(directory, texts=TEXTS):
    """The last token's final hidden state, scaled to length 1, by transformers."""
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        hidden = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1] for text in texts]
    return torch.nn.functional.normalize(torch.stack(hidden))


def vectors(directory, **settings):
    with LLM(directory, device="cpu", threads=1, **settings) as llm:
        return torch.tensor([output.outputs.embedding for output in llm.embed(TEXTS)])


@pytest.mark.parametrize("architecture", ["LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"])
def test_a_decoder_without_a_head_gives_the_vectors_of_transformers(tmp_path, architecture):
    directory = write_headless(architecture, tmp_path / "model")
    torch.testing.assert_close(vectors(directory), expected(directory), atol=1e-5, rtol=1e-4)


def test_offload_changes_no_vector(tmp_path):
    directory = write_headless("Qwen3Model", tmp_path / "model", prefix="model.")
    resident = vectors(directory)
    assert torch.equal(vectors(directory, cpu_offload_gb=0.0003), resident)
    assert torch.equal(vectors(directory, offload_group_size=2), resident)


def test_a_generating_checkpoint_with_last_token_pooling_gives_vectors(tmp_path):
    directory = write_pooled(tmp_path / "model", LAST)
    found = vectors(directory)
    torch.testing.assert_close(found, expected(directory), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    change(directory / "1_Pooling" / "config.json", pooling_mode="lasttoken")
    assert torch.equal(vectors(directory), found)


@pytest.mark.parametrize(
    ("pooling", "text"),
    [
        ({"pooling_mode_mean_tokens": True}, "made by mean_tokens pooling"),
        ({"pooling_mode": "cls"}, "made by cls pooling"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True}, "made by max_tokens pooling"),
        ({}, "names no pooling mode"),
    ],
)
def test_another_pooling_is_refused_by_name_before_a_weight_is_read(tmp_path, pooling, text):
    directory = write_pooled(tmp_path / "model", pooling)
    shard = directory / "model.safetensors"
    # Zeroes in the data change no header, so only reading weights could tell.
    with pytest.raises(ModelLoadError, match=text):
        LLM(directory, device="cpu", progress=lambda *_: pytest.fail("a weight was read"))
    assert shard.exists()


@pytest.mark.parametrize("modules", ["{", '{"a": 1}', '[{"type": "x.Pooling", "path": "../up"}]'])
def test_a_damaged_list_of_modules_is_a_format_error(tmp_path, modules):
    directory = write_tiny("LlamaForCausalLM", tmp_path / "model")
    (directory / "modules.json").write_text(modules)
    with pytest.raises(FormatError, match=r"modules\.json"):
        LLM(directory, device="cpu")


def test_text_and_embedding_models_refuse_each_others_calls(tmp_path):
    with LLM(write_headless("LlamaModel", tmp_path / "embeds"), device="cpu") as llm:
        with pytest.raises(InvalidArgument, match="gives embeddings and no text: use vllm_embed"):
            llm.generate("a")
        assert len(llm.embed("a")[0].outputs.embedding) == 64
    with LLM(write_tiny("LlamaForCausalLM", tmp_path / "writes"), device="cpu") as llm:
        with pytest.raises(InvalidArgument, match="generates text and gives no embeddings: use vllm_complete"):
            llm.embed("a")
        assert llm.generate("a")


BAD = [
    ({"input": []}, "input"), ({"input": "a" * 300}, "input"), ({"input": ["a", 1]}, "input"),
    ({"dimensions": 8}, "dimensions"), ({"encoding_format": "int8"}, "encoding_format"),
]  # fmt: skip


def test_the_openai_client_gets_the_librarys_vectors(tmp_path):
    directory = write_headless("Qwen3Model", tmp_path / "model")
    wanted = vectors(directory)
    server = ServerProcess("--model", str(directory), "--served-model-name", "e", "--device", "cpu")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=1000) as ai:
        # The client asks for base64 unless it is told otherwise.
        for form in ({}, {"encoding_format": "float"}):
            answer = ai.embeddings.create(model="e", input=TEXTS, **form)
            assert torch.allclose(torch.tensor([item.embedding for item in answer.data]), wanted, atol=1e-6)
            assert [item.index for item in answer.data] == [0, 1, 2]
        assert answer.usage.total_tokens == answer.usage.prompt_tokens == sum(len(text.encode()) for text in TEXTS)
        assert len(ai.embeddings.create(model="e", input=[1, 2, 3]).data) == 1
        for fields, param in BAD:
            with pytest.raises(openai.BadRequestError) as raised:
                ai.embeddings.create(**{"model": "e", "input": "a", **fields})
            assert raised.value.param == param
        with pytest.raises(openai.BadRequestError, match="use vllm_embed"):
            ai.completions.create(model="e", prompt="a")
        with pytest.raises(openai.BadRequestError, match="use vllm_embed"):
            ai.chat.completions.create(model="e", messages=[{"role": "user", "content": "a"}])
    assert server.stop() == 0
