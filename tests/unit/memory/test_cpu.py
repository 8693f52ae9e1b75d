"""The CPU device's arena: named, limited, aligned, exact, and given back."""

import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from pyvllm.errors import DoesNotFit
from pyvllm.memory.base import ALIGNMENT, REGION_BYTES, pack, region_bytes
from pyvllm.memory.cpu import CpuMemory, _cgroup_rooms, host_room
from pyvllm.model_loader.tensors import cpu_tensor_at


def mapped_bytes(pool: str) -> int:
    """Bytes of the process map under a pool's name, from the kernel."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"vllm:{pool}" in line:
            start, end = re.match(r"([0-9a-f]+)-([0-9a-f]+)", line).groups()
            total += int(end, 16) - int(start, 16)
    return total


@pytest.fixture
def memory():
    made = CpuMemory(cpu_tensor_at, device_limit=1000)
    yield made
    made.close()


def test_both_pools_stand_in_the_process_map_under_their_names(memory):
    before = mapped_bytes("device"), mapped_bytes("host")
    kept = memory.allocate("device", {"a": 900}), memory.allocate("host", {"b": 5000})
    assert mapped_bytes("device") - before[0] == 4096
    assert mapped_bytes("host") - before[1] == 8192
    assert [tensor.nbytes for tensors in kept for tensor in tensors.values()] == [900, 5000]


def test_an_allocation_beyond_the_device_limit_fails_with_the_numbers(memory):
    kept = memory.allocate("device", {"a": 600})
    with pytest.raises(
        DoesNotFit, match="401 bytes more were asked for, 600 are taken and weight_budget_bytes allows 1000"
    ):
        memory.allocate("device", {"b": 401})
    memory.allocate("device", {"b": 400})
    assert kept["a"].nbytes == 600


def test_tensors_are_aligned_exact_writable_and_do_not_overlap(memory):
    tensors = memory.allocate("host", {f"w{i}": 3 * i + 1 for i in range(50)})
    for number, tensor in enumerate(tensors.values()):
        assert tensor.data_ptr() % ALIGNMENT == 0
        tensor.fill_(number)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors.values()))


def test_a_region_outlives_the_memory_until_its_last_view_goes():
    memory = CpuMemory(cpu_tensor_at)
    before = mapped_bytes("host")
    view = memory.allocate("host", {"a": 4096})["a"][10:20]
    memory.close()
    view.fill_(7)
    assert mapped_bytes("host") - before == 4096
    del view
    assert mapped_bytes("host") == before


def test_copies_reach_their_destination_in_order(memory):
    tensors = memory.allocate("host", {name: 4096 for name in "abc"})
    tensors["a"].fill_(1)
    tensors["b"].fill_(2)
    memory.start_copy([(tensors["c"], tensors["a"])])
    memory.wait_copy(memory.start_copy([(tensors["c"], tensors["b"])]))
    assert torch.equal(tensors["c"], tensors["b"])


def test_weights_are_packed_into_regions_of_at_most_a_gibibyte_or_one_weight():
    sizes = {"a": REGION_BYTES - 100, "b": 200, "c": 2 * REGION_BYTES, "d": 10}
    regions = pack(sizes)
    assert [list(region) for region in regions] == [["a"], ["b"], ["c"], ["d"]]
    assert region_bytes(regions[2], sizes) == 2 * REGION_BYTES


def test_overhead_from_64_mib_up_is_at_most_two_percent(memory):
    sizes = {f"w{i}": 1024 * 1024 + 2 * i for i in range(64)}
    kept = memory.allocate("host", sizes)
    spanned = sum(region.nbytes for region in memory.regions())
    assert spanned - sum(tensor.nbytes for tensor in kept.values()) <= 0.02 * sum(sizes.values())


def test_host_room_names_the_address_space_limit_when_that_is_smallest():
    code = """
        import resource
        from pyvllm.memory.cpu import host_room
        resource.setrlimit(resource.RLIMIT_AS, (300 * 2**20, resource.RLIM_INFINITY))
        room = host_room()
        print(room.source, room.nbytes < 300 * 2**20)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["RLIMIT_AS", "True"]


@pytest.mark.parametrize(
    ("line", "folder", "limit", "usage"),
    [
        ("0::/a/b", "a/b", "memory.max", "memory.current"),
        ("4:memory:/a/b", "memory/a/b", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_cgroup_limits_of_both_versions_count_up_to_the_root(tmp_path, line, folder, limit, usage):
    inner = tmp_path / folder
    inner.mkdir(parents=True)
    for path, numbers in ((inner, ("max", "5")), (inner.parent, ("1000", "400"))):
        (path / limit).write_text(numbers[0])
        (path / usage).write_text(numbers[1])
    membership = tmp_path / "cgroup"
    membership.write_text(f"{line}\n")
    assert [room.nbytes for room in _cgroup_rooms(tmp_path, membership)] == [600]


def test_host_room_is_at_most_the_free_memory():
    assert 0 < host_room().nbytes <= resource.getpagesize() * 2**40


def test_a_large_region_is_in_huge_pages_where_the_system_makes_them():
    memory = CpuMemory(cpu_tensor_at)
    kept = memory.allocate("device", {"a": 64 * 2**20})
    written = torch.arange(64 * 2**20, dtype=torch.int32).to(torch.uint8)
    kept["a"].copy_(written)  # while the pages are made
    memory.settle()
    assert torch.equal(kept["a"], written)
    fields = {"ShmemPmdMapped": 0, "Rss": 0}
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = "vllm:device" in line
        elif is_ours and name in fields:
            fields[name] += int(rest.split()[0]) * 1024
    if not fields["ShmemPmdMapped"]:
        pytest.skip("this system makes no huge pages of shared memory")
    # The ends of the region are less than a huge page each.
    assert 60 * 2**20 <= fields["ShmemPmdMapped"] <= kept["a"].nbytes
    memory.close()
