"""The reader against the rules of DESIGN section 3, over documents of the whole grammar and over arbitrary text."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyvllm.config.offload import GIB, OffloadConfig
from pyvllm.errors import InvalidArgument
from tests.unit.config.offload_grammar import Judge, documents, render, sound_documents

settings.register_profile("offload", deadline=None, derandomize=True, max_examples=400)
OFFLOAD = settings.get_profile("offload")


def read(text):
    try:
        return OffloadConfig.from_json(text), None
    except InvalidArgument as refusal:
        return None, str(refusal)


@given(documents)
@settings(OFFLOAD)
def test_a_document_is_accepted_or_refused_exactly_as_the_rules_say(pairs):
    judge = Judge(pairs)
    config, refusal = read(render(pairs))
    if judge.bad:
        assert refusal is not None
        assert refusal.startswith("offload_config: ")
        assert [path for path in judge.bad if path not in refusal] == []
    elif judge.broken_rule:
        assert refusal == judge.broken_rule
    else:
        assert refusal is None
        assert config.to_dict() == judge.document


@given(sound_documents)
@settings(OFFLOAD)
def test_what_is_accepted_comes_back_equal_from_its_normalised_text(pairs):
    config, _ = read(render(pairs))
    if config is not None:
        again = OffloadConfig.from_json(json.dumps(config.to_dict()))
        assert again == config
        assert OffloadConfig.from_dict(config.to_dict()) == config
        assert json.dumps(again.to_dict()) == json.dumps(config.to_dict())


@given(sound_documents)
@settings(OFFLOAD)
def test_backend_switch_and_warning_follow_from_the_two_budgets(pairs):
    config, _ = read(render(pairs))
    if config is None:
        return
    uva, prefetch = config.uva.cpu_offload_gb > 0, config.prefetch.offload_group_size > 0
    named = config.offload_backend
    expected = {"auto": "prefetch" if prefetch else "uva" if uva else None}.get(named, named)
    assert config.resolved_backend == expected
    assert config.is_offloading_enabled == {"uva": uva, "prefetch": prefetch, None: False}[expected]
    assert len(config.warnings) == {"auto": uva and prefetch, "uva": prefetch, "prefetch": uva}[named]
    assert config.uva_max_bytes <= config.uva.cpu_offload_gb * GIB < config.uva_max_bytes + 1


@given(st.text(st.characters(exclude_categories=()), max_size=60))
@example("\ud83d")
@example('{"uva":{"cpu_offload_gb":' + "1" * 6000 + "}}")
@example('{"x":' + "[" * 100_000)
@settings(OFFLOAD)
def test_arbitrary_text_is_read_or_refused_and_nothing_else(text):
    config, refusal = read(text)
    assert (config is None) != (refusal is None)


@given(documents, st.data())
@settings(OFFLOAD)
def test_a_damaged_document_is_read_or_refused_and_nothing_else(pairs, data):
    text = render(pairs)
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.sampled_from(["", "\x00", "\ud800", "{", '"', "1e", "-", "\\u", "NaN", ","]))
    config, refusal = read(text[:at] + piece + text[at + data.draw(st.integers(0, 2)) :])
    assert (config is None) != (refusal is None)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["offload_backend", "uva", "prefetch", "vllm_cpp", "x"]), json_values))
@settings(OFFLOAD)
def test_arbitrary_python_values_are_read_or_refused_and_nothing_else(document):
    try:
        config = OffloadConfig.from_dict(document)
    except InvalidArgument:
        return
    assert OffloadConfig.from_dict(config.to_dict()) == config
