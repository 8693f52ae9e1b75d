"""The recount on plain numbers: where tensors are is looked up in the regions, and then held against the plan."""

from dataclasses import replace

import pytest

from pyvllm.errors import LoaderDefect
from pyvllm.memory.base import Region
from pyvllm.offloader.base import Place
from pyvllm.offloader.guard import Live, check_recount, check_taken, recount
from tests.unit.offloader.plans import layer_specs, plan_of, prefetch, uva

BLOCK = {"mlp.gate_up_proj.weight": 512, "mlp.down_proj.weight": 256}
DEVICE, HOST = Region("device", 0x1000, 4096), Region("host", 0x9000, 8192, device_address=0x70000)
REGIONS = (DEVICE, HOST)


def count(parameters, sources=(), buffers=()):
    return recount("TestForCausalLM", parameters, sources, buffers, REGIONS)


@pytest.mark.parametrize(
    ("address", "nbytes", "place"),
    [
        (0x1000, 4096, Place.DEVICE),
        (0x1000, 4097, None),
        (0x0FFF, 16, None),
        (0x9000, 8192, Place.HOST),
        (0x70000, 16, Place.HOST),
        (0x70000 + 8192 - 15, 16, None),
        (0x5000, 16, None),
    ],
)
def test_a_parameter_is_where_a_region_holds_all_of_it(address, nbytes, place):
    places, measured = count({"w": Live(address, nbytes)})
    assert places == {"w": place}
    assert measured["device_bytes"] == (nbytes if place is Place.DEVICE else 0)
    assert measured["host_bytes"] == (nbytes if place is Place.HOST else 0)


def test_a_parameter_in_a_static_buffer_is_streamed_and_its_bytes_are_those_of_the_host_copies():
    buffer, copies = Live(0x1100, 256), [Live(0x9000, 256), Live(0x9100, 256)]
    places, measured = count({"a": buffer, "b": buffer, "c": Live(0x1000, 128)}, copies, [buffer])
    assert places == {"a": Place.STREAMED, "b": Place.STREAMED, "c": Place.DEVICE}
    assert measured == {
        "device_bytes": 128, "host_bytes": 0, "streamed_bytes": 512, "buffer_bytes": 256,
        "overhead_bytes": 4096 + 8192 - 128 - 512 - 256,
    }  # fmt: skip


def test_a_tied_weight_has_two_names_and_its_bytes_once():
    live = Live(0x9000, 100)
    assert count({"embed": live, "head": live})[1]["host_bytes"] == 100


def test_a_host_copy_or_a_buffer_in_the_wrong_pool_is_a_defect():
    with pytest.raises(LoaderDefect, match="streamed weight is not in host memory"):
        count({}, sources=[Live(0x1000, 16)])
    with pytest.raises(LoaderDefect, match="prefetch buffer is not in device memory"):
        count({}, buffers=[Live(0x9000, 16)])


def planned_places(plan):
    places = {item.spec.name: item.place for item in plan.placements}
    sums = {f"{place.value}_bytes": plan.bytes_at(place) for place in Place} | {"buffer_bytes": plan.buffer_bytes}
    return places, sums


@pytest.mark.parametrize("document", [{}, uva(600), prefetch(2)])
def test_what_is_as_planned_passes(document):
    plan = plan_of(layer_specs(BLOCK, 4), document)
    assert check_recount(plan, *planned_places(plan)) is None


@pytest.mark.parametrize("field", ["device_bytes", "host_bytes", "streamed_bytes", "buffer_bytes"])
def test_a_place_with_other_bytes_than_planned_is_named_with_both_numbers(field):
    plan = plan_of(layer_specs(BLOCK, 4), prefetch(2))
    places, sums = planned_places(plan)
    text = rf"measured {sums[field] + 1} {field} where {sums[field]} were planned"
    with pytest.raises(LoaderDefect, match=text):
        check_recount(plan, places, {**sums, field: sums[field] + 1})


def test_a_weight_elsewhere_and_one_that_nobody_planned_are_named():
    plan = plan_of(layer_specs(BLOCK, 1), uva(1))
    places, sums = planned_places(plan)
    first, second = places
    with pytest.raises(LoaderDefect, match=rf"{second} \(planned device, found host\), extra \(not planned\)"):
        check_recount(plan, {**places, second: Place.HOST, "extra": Place.DEVICE}, sums)
    with pytest.raises(LoaderDefect, match=rf"{first} \(planned host, found in no region of this engine\)"):
        check_recount(plan, {second: Place.DEVICE}, sums)


def test_every_live_name_of_a_tied_weight_must_be_where_it_was_planned():
    specs = [replace(spec, aliases=("twin",)) for spec in layer_specs({"w": 16}, 1)]
    plan = plan_of(specs, {})
    places, sums = planned_places(plan)
    check_recount(plan, {**places, "twin": Place.DEVICE}, sums)
    with pytest.raises(LoaderDefect, match="found host"):
        check_recount(plan, {**places, "twin": Place.HOST}, sums)


def test_names_that_an_architecture_never_took_are_listed_up_to_five():
    plan = plan_of(layer_specs(BLOCK, 4), {})
    names = [item.spec.name for item in plan.placements]
    check_taken(plan, reversed(names))
    with pytest.raises(LoaderDefect, match=rf"never took {names[3]}$"):
        check_taken(plan, names[:3] + names[4:])
    with pytest.raises(LoaderDefect, match=r"never took .* and 2 more$"):
        check_taken(plan, names[:1])
    with pytest.raises(LoaderDefect, match=r"took no parameter through weights\.take"):
        check_taken(plan, [])
