"""A step moves each host weight across the bus at most once, and of routed experts only their rows."""

from collections import Counter

import pytest

from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.layers.mlp import Experts
from pyvllm.offloader.prefetch import LayerStream
from tests.fakecuda_session.engines import GIB, GREEDY, loaded, prefetch, uva
from tests.tiny_models import ARCHITECTURES


def step_bytes(machine, engine, num_tokens: int) -> Counter:
    """Bytes that one step of a new request moved across the bus, by weight."""
    engine.offload_report()
    spans = {}
    for name, parameter in engine._model.runner.model.named_parameters():
        spans[name] = (parameter.data_ptr(), parameter.nbytes)
    request = Request(0, [5 + 3 * i for i in range(num_tokens)], GREEDY)
    request.block_ids = list(range(8))
    machine.forget()
    runner = engine._model.runner
    runner.compute_logits(runner.execute([Scheduled(request, num_tokens)]))
    moved = Counter()
    for address, nbytes, _ in machine.crossings():
        names = [name for name, (start, size) in spans.items() if start <= address < start + size]
        moved[names[0] if names else "streamed"] += nbytes
    return moved


def host_bytes(engine) -> dict[str, int]:
    return {item["name"]: item["bytes"] for item in engine.offload_report()["placements"] if item["place"] == "host"}


@pytest.mark.parametrize("num_tokens", [1, 8, 40])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_moves_each_host_weight_at_most_once(machine, device, models, architecture, num_tokens):
    with loaded(device, models(architecture, tie_word_embeddings=False), uva(GIB)) as engine:
        moved, sizes = step_bytes(machine, engine, num_tokens), host_bytes(engine)
        assert set(moved) <= set(sizes)
        assert {name: nbytes for name, nbytes in moved.items() if nbytes > sizes[name]} == {}
        dense = [name for name in sizes if "experts" not in name and "embed" not in name]
        assert {name for name in dense if moved[name] != sizes[name]} == set()


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
def test_of_fused_experts_only_routed_rows_move(machine, device, models, architecture):
    with loaded(device, models(architecture), uva(GIB, ["experts"])) as engine:
        moved, sizes = step_bytes(machine, engine, 1), host_bytes(engine)
        assert set(moved) == set(sizes)
        # Two of eight experts for the one token.
        assert all(nbytes * 4 == sizes[name] for name, nbytes in moved.items())


def test_of_an_embedding_only_the_tokens_rows_move(machine, device, models):
    with loaded(device, models("LlamaForCausalLM"), uva(GIB, ["embed_tokens"])) as engine:
        assert step_bytes(machine, engine, 3) == {"model.embed_tokens.weight": 3 * 64 * 4}


def test_a_streamed_layer_is_copied_once_a_step(machine, device, models):
    with loaded(device, models("LlamaForCausalLM"), prefetch(1, 1, 2)) as engine:
        assert step_bytes(machine, engine, 40) == {"streamed": engine.offload_report()["planned"]["streamed_bytes"]}


def test_long_steps_pass_through_the_planned_buffers_and_short_ones_do_not(machine, device, models):
    with loaded(device, models("LlamaForCausalLM"), uva(GIB)) as engine:
        sizes = engine.offload_report()["planned"]
        largest = {1: 0, 2: 0}
        for item in engine.offload_report()["placements"]:
            if item["kind"] != "embedding":
                largest[len(item["shape"])] = max(largest[len(item["shape"])], item["bytes"])
        assert sizes["buffer_bytes"] == sum(largest.values())
        step_bytes(machine, engine, 1)
        assert not any(is_copy for _, _, is_copy in machine.crossings())
        step_bytes(machine, engine, 40)
        assert any(is_copy for _, _, is_copy in machine.crossings())


# What follows breaks the product on purpose: a suite that stays green then would prove nothing.


def test_a_step_that_is_not_staged_is_seen_to_move_weights_twice(machine, device, models, monkeypatch):
    monkeypatch.setattr("pyvllm.model_loader.staged_reads.IN_PLACE_ROWS", 10**6)
    with pytest.raises(AssertionError):
        test_a_step_moves_each_host_weight_at_most_once(machine, device, models, "LlamaForCausalLM", 40)


def test_copying_whole_experts_is_seen(machine, device, models, monkeypatch):
    forward = Experts.forward

    def whole(self, *arguments):
        self.w13_weight + 0
        return forward(self, *arguments)

    monkeypatch.setattr(Experts, "forward", whole)
    with pytest.raises(AssertionError):
        test_of_fused_experts_only_routed_rows_move(machine, device, models, "Qwen3MoeForCausalLM")


def test_a_stream_that_copies_twice_is_seen(machine, device, models, monkeypatch):
    fill = LayerStream._fill
    monkeypatch.setattr(LayerStream, "_fill", lambda self, position: (fill(self, position), fill(self, position)))
    with pytest.raises(AssertionError):
        test_a_streamed_layer_is_copied_once_a_step(machine, device, models)
