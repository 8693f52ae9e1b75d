"""What a stream copies, when, and for whom it waits; without a device, and without torch."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pyvllm.memory.base import Memory
from pyvllm.offloader.prefetch import LayerStream, Schedule

CASES = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/offloader_cases.jsonl").read_text().splitlines()
]
RUNS = [case for case in CASES if case["kind"] == "prefetch_run" and case["expected"] == "same"]


@dataclass(frozen=True)
class _Bytes:
    """What a copy needs to know of a tensor: here a buffer's slot or a host weight's position."""

    number: int
    nbytes: int = 10


@dataclass
class _Book:
    """The two calls of a memory that a stream makes, written down with what computed between them."""

    events: list[tuple[str, int]] = field(default_factory=list)

    def start_copy(self, copies):
        [(buffer, source)] = copies
        self.events.append(("copy", source.number))
        return source.number, buffer.number

    def wait_copy(self, ticket):
        self.events.append(("wait", ticket[0]))

    def copies(self) -> list[int]:
        return [position for kind, position in self.events if kind == "copy"]


def stream_of(layers, steps: int) -> tuple[LayerStream, _Book]:
    schedule, book = Schedule(tuple(layers), steps), _Book()
    copies = {j: [(_Bytes(j % steps), _Bytes(j))] for j in range(len(layers))}
    stream = LayerStream(schedule, book, copies)
    stream.start()
    return stream, book


def run_step(stream: LayerStream, book: _Book, num_layers: int) -> None:
    for index in range(num_layers):
        with stream.layer(index):
            book.events.append(("compute", index))


@pytest.mark.parametrize("case", RUNS, ids=lambda case: f"{len(case['offloaded'])} by {case['prefetch_step']}")
def test_the_copies_of_two_steps_are_the_recorded_ones(case):
    stream, book = stream_of(case["offloaded"], case["prefetch_step"])
    for _ in range(2):
        run_step(stream, book, case["n_layers"])
    assert book.copies() == [*case["initial"], *case["prefetch_seq"]]
    assert stream.copied_bytes == 10 * len(book.copies())


@pytest.mark.parametrize(("count", "steps"), [(m, s) for m in range(2, 7) for s in range(1, m)])
def test_only_a_streamed_layer_waits_and_its_copy_was_started_before_it_came(count, steps):
    layers = range(1, 2 * count, 2)
    stream, book = stream_of(layers, steps)
    for _ in range(3):
        book.events.append(("step", 0))
        run_step(stream, book, 2 * count)
    waits = [n for n, (kind, _) in enumerate(book.events) if kind == "wait"]
    assert len(waits) == stream.num_waits == 3 * count
    for n in waits:
        position = book.events[n][1]
        assert book.events[n + 1] == ("compute", layers[position])
        assert book.events[n - 1] in (("compute", layers[position] - 1), ("step", 0))
        assert ("copy", position) in book.events[:n]


def test_a_slot_is_refilled_only_after_its_layer_was_left():
    stream, book = stream_of((0, 1, 2), 2)
    run_step(stream, book, 3)
    for kind, layer, refilled in (("compute", 0, 2), ("compute", 1, 1), ("compute", 2, 0)):
        assert book.events[book.events.index((kind, layer)) + 1] == ("copy", refilled)


def test_after_a_step_that_broke_off_every_layer_finds_its_own_weights_again():
    stream, book = stream_of((0, 1, 2, 3), 2)
    with pytest.raises(RuntimeError, match="planted"), stream.layer(1):
        raise RuntimeError("planted")
    held, seen = {}, []
    for index in range(4):
        with stream.layer(index):
            held |= {position % 2: position for position in book.copies()}
            seen.append(held[index % 2])
    assert seen == [0, 1, 2, 3]


def test_the_book_has_the_calls_of_a_memory():
    assert {"start_copy", "wait_copy"} <= Memory.__abstractmethods__
