"""A document's sums are those of its placements, whatever was offloaded, and every reason is the backend's."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.config.model import single
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import configuration_document
from pyvllm.offloader.fit import choose_fit
from pyvllm.offloader.plan import Capacity, Demand, make_plan
from pyvllm.offloader.summary import rate_bound
from tests.unit.config.offload_grammar import render, sound_documents

ROOM = Capacity(2**40, 2**50, "a device", "a test", "a test", is_one_pool=False)
PLACES = ("device", "host", "streamed")
SPECS = [
    replace(spec, name=spec.name.format(layer), layer=layer)
    for layer in range(4)
    for spec in (
        single("model.layers.{}.self_attn.qkv_proj.weight", 0, "bfloat16", (32, 8), kind="attention"),
        replace(single("model.layers.{}.mlp.experts.w2_weight", 0, "bfloat16", (8, 4, 4), kind="experts"),
                num_experts=8, experts_per_token=2),
        single("model.layers.{}.input_layernorm.weight", 0, "bfloat16", (8,), kind="norm"),
    )
] + [single("model.embed_tokens.weight", None, "bfloat16", (64, 8), kind="embedding")]  # fmt: skip
UVA = st.builds(lambda nbytes, params: {"uva": {"cpu_offload_gb": nbytes / 2**30, "cpu_offload_params": params}},
                st.integers(1, 5000), st.sampled_from([[], ["experts"], ["embed_tokens", "qkv_proj"]]))  # fmt: skip
PREFETCH = st.builds(lambda group, params: {"prefetch": {"offload_group_size": group, "offload_params": params}},
                     st.integers(1, 3), st.sampled_from([[], ["experts"], ["qkv_proj"]]))  # fmt: skip
documents = st.one_of(st.just({}), UVA, PREFETCH)


def document_of(offload):
    return make_plan("T", SPECS, OffloadConfig.from_dict(offload), Demand(7, 1, 5, 3), ROOM).to_document()


@given(documents)
def test_sums_by_layer_and_by_kind_are_those_of_the_placements(offload):
    document = document_of(offload)
    for groups, key in ((document["by_layer"], "layer"), (document["by_kind"], "kind")):
        assert len({group[key] for group in groups}) == len(groups)
        for group in groups:
            mine = [weight for weight in document["placements"] if weight[key] == group[key]]
            for place in PLACES:
                assert group[f"{place}_bytes"] == sum(w["bytes"] for w in mine if w["place"] == place)
        for name, total in document["bus_bytes_per_token"].items():
            assert sum(group["bus_bytes_per_token"][name] for group in groups) == total


@given(documents)
def test_dense_bytes_and_experts_bytes_are_all_that_crosses(offload):
    document = document_of(offload)
    bus = document["bus"]
    for name, total in document["bus_bytes_per_token"].items():
        assert bus["dense_bytes"][name] + bus["experts_bytes"][name] == total
    away = [w for w in document["placements"] if w["kind"] == "experts" and w["place"] != "device"]
    assert (bus["experts_used"], bus["experts_of"]) == ((2, 8) if away else (None, None))


@given(documents)
def test_what_stayed_is_all_that_is_on_the_device_and_has_a_reason(offload):
    document = document_of(offload)
    assert sum(group["bytes"] for group in document["not_selected"]) == document["planned"]["device_bytes"]
    assert sum(group["count"] for group in document["not_selected"]) == sum(
        weight["place"] == "device" for weight in document["placements"]
    )
    assert all(bool(weight["why"]) == (weight["place"] == "device") for weight in document["placements"])


REASONS = [
    ({"uva": {"cpu_offload_gb": 1e-6}}, "model.embed_tokens.weight", "the budget of 1073 bytes was reached before it"),
    ({"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["experts"]}}, "model.embed_tokens.weight",
     "no entry of cpu_offload_params selects it (experts)"),
    ({"prefetch": {"offload_group_size": 2}}, "model.embed_tokens.weight",
     "it is outside the decoder layers, and prefetch streams only layers"),
    ({"prefetch": {"offload_group_size": 2}}, "model.layers.0.input_layernorm.weight",
     "its layer is not among the last 1 of each group of 2"),
    ({"prefetch": {"offload_group_size": 2, "offload_params": ["experts"]}}, "model.layers.1.input_layernorm.weight",
     "no entry of offload_params selects it (experts)"),
]  # fmt: skip


@pytest.mark.parametrize(("offload", "name", "why"), REASONS)
def test_R6_the_reason_names_the_setting_that_kept_a_weight_on_the_device(offload, name, why):
    [weight] = [weight for weight in document_of(offload)["placements"] if weight["name"] == name]
    assert (weight["place"], weight["why"]) == ("device", why)


def test_without_offload_the_reason_is_that_it_is_off():
    assert {weight["why"] for weight in document_of({})["placements"]} == {"offload is off"}


def test_streamed_experts_cross_whole_and_experts_read_in_place_cross_as_routed():
    streamed = document_of({"prefetch": {"offload_group_size": 2, "offload_params": ["experts"]}})
    assert streamed["bus"]["experts_bytes"] == {"worst": 2 * 256, "expected": 2 * 256}
    in_place = document_of({"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["experts"]}})
    assert in_place["bus"]["experts_bytes"] == {"worst": 4 * 256, "expected": 4 * 64}


def test_a_rate_without_crossing_bytes_has_no_bound():
    assert rate_bound({"worst": 5 * 10**8, "expected": 0}, 2.0) == {"worst": 4.0, "expected": None}


def test_a_model_that_fits_to_the_byte_is_left_alone():
    auto = OffloadConfig.from_dict({"vllm_cpp": {"device_fit": {"auto": True}}})
    exact = replace(ROOM, device_bytes=sum(spec.nbytes for spec in SPECS) + 12)
    fit = choose_fit("T", True, SPECS, auto, Demand(7, 1, 5, 3), exact)
    assert fit.offload == OffloadConfig() and fit.reason.startswith("nothing is offloaded: ")


@given(sound_documents)
def test_the_shortest_text_reads_back_as_the_same_configuration(pairs):
    try:
        config = OffloadConfig.from_json(render(pairs))
    except ValueError:
        return
    short = config.to_short_json()
    assert OffloadConfig.from_json(short) == config
    assert len(short) <= len(json.dumps(config.to_dict()))


def test_without_a_model_a_fit_leaves_open_what_only_a_model_can_say():
    document = configuration_document(OffloadConfig.from_dict({"vllm_cpp": {"device_fit": {"auto": True}}}))
    assert document["enabled"] is None and document["resolved_backend"] is None
    assert document["fit"] == {"auto": True, "reason": None, "offload_config": None}
    assert document["config"] == {"offload_backend": "auto", "vllm_cpp": {"device_fit": {"auto": True}}}
    assert set(document) == set(document_of({}))
