"""Every sampling field over the whole engine, on a random model that would never keep to a grammar by itself."""

import json
import re

import pytest

from pyvllm.errors import InvalidArgument
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams
from tests.offload.engines import loaded
from tests.tiny_models import EOS_TOKEN_ID, write_tiny

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
    # A random model would write white space until its tokens run out.
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with loaded(write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("tiny") / "m")) as made:
        yield made


def answer(engine, structured: dict, seed: int = 0, **more):
    params = SamplingParams(
        temperature=1, seed=seed, max_tokens=120, structured_outputs=StructuredOutputsParams(**structured), **more
    )
    return engine.generate("Say:", params)


@pytest.mark.parametrize("seed", range(3))
def test_a_json_schema_is_kept(engine, seed):
    found = answer(engine, {"json": json.dumps(SCHEMA)}, seed)
    assert found.finish_reason == "stop"
    value = json.loads(found.text)
    assert set(value) == {"name", "age"}
    assert 0 <= value["age"] <= 99


@pytest.mark.parametrize("seed", range(3))
def test_a_regular_expression_a_choice_and_a_grammar_are_kept(engine, seed):
    assert re.fullmatch(r"[a-c]{3}-[0-9]{2}", answer(engine, {"regex": r"[a-c]{3}-[0-9]{2}"}, seed).text)
    assert answer(engine, {"choice": ["red", "green"]}, seed).text in ("red", "green")
    assert answer(engine, {"grammar": 'root ::= "yes" | "no"'}, seed).text in ("yes", "no")


def test_a_json_object_is_an_object_as_far_as_it_goes(engine):
    assert answer(engine, {"json_object": True}).text.lstrip().startswith("{")


@pytest.mark.parametrize(
    "structured", [{"json": "{"}, {"regex": "["}, {"grammar": "root ::= missing"}, {"json": '{"type": "nonsense"}'}]
)
def test_a_grammar_that_cannot_be_compiled_is_refused_by_field(engine, structured):
    with pytest.raises(InvalidArgument, match=f"structured output '{next(iter(structured))}' cannot be compiled"):
        answer(engine, structured)


def test_structured_requests_in_one_batch_do_not_touch_each_other(engine):
    params = [
        SamplingParams(
            temperature=1, seed=7, max_tokens=9, structured_outputs=StructuredOutputsParams(regex=f"{letter}{{6}}")
        )
        for letter in "abcd"
    ]
    items = [engine.submit("Say:", each) for each in params]
    assert all(item.wait(60) for item in items)
    assert [item.output.text for item in items] == ["aaaaaa", "bbbbbb", "cccccc", "dddddd"]


def test_min_tokens_holds_the_end_back(engine):
    bias = [lambda token_ids, logits: logits.__setitem__(EOS_TOKEN_ID, 100.0)]
    params = SamplingParams(temperature=0, max_tokens=20, min_tokens=7)
    found = engine.generate("Say:", params, logits_processors=bias)
    assert (len(found.token_ids), found.token_ids[-1], found.finish_reason) == (8, EOS_TOKEN_ID, "stop")


def test_a_stop_string_in_the_first_min_tokens_does_not_end_the_answer(engine):
    free = engine.generate("Say:", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    stop = next(character for character in free.text if character != "�")
    params = SamplingParams(temperature=0, max_tokens=12, min_tokens=12, ignore_eos=True, stop=(stop,))
    assert engine.generate("Say:", params).token_ids == free.token_ids


def test_a_strong_repetition_penalty_leaves_no_token_twice(engine):
    params = SamplingParams(temperature=0, max_tokens=40, repetition_penalty=1000.0, ignore_eos=True)
    found = engine.generate([5, 6, 7], params).token_ids
    assert len(set(found)) == len(found)
    assert not set(found) & {5, 6, 7}
