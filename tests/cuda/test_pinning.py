"""What is read of the environment, and what follows from it for host memory."""

import resource

import pytest

from pyvllm.errors import InvalidArgument
from pyvllm.memory.base import Room
from pyvllm.memory.pinning import DeviceAttributes, Environment, HostAccess, read_environment

DISCRETE = DeviceAttributes(False, True, True, False, False)
COHERENT = DeviceAttributes(False, True, True, True, True)
PIN, UVA, WSL = (
    "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY",
    "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA",
    "VLLM_WSL2_ENABLE_PIN_MEMORY",
)


@pytest.mark.parametrize(("text", "expected"), [("0", False), ("1", True), ("2", True), (" 1 ", True), ("-1", True)])
@pytest.mark.parametrize(
    ("name", "field"), [(PIN, "is_pinning_disabled"), (UVA, "is_uva_disabled"), (WSL, "is_wsl_pinning_enabled")]
)
def test_a_variable_is_an_integer_as_in_vllm(name, field, text, expected):
    assert getattr(read_environment({name: text}), field) is expected
    assert getattr(read_environment({}), field) is False


@pytest.mark.parametrize("text", ["true", "", "yes", "1.0"])
@pytest.mark.parametrize("name", [PIN, UVA, WSL])
def test_what_is_no_integer_is_refused_with_name_and_value(name, text):
    with pytest.raises(InvalidArgument, match=f"{name} must be an integer.*{text!r}"):
        read_environment({name: text})


@pytest.mark.parametrize(
    ("limit", "capabilities", "expected"),
    [
        (resource.RLIM_INFINITY, "0000000000000000", None),
        (65536, "0000000000000000", Room(65536 - 8192, "RLIMIT_MEMLOCK")),
        (4096, "0000000000000000", Room(0, "RLIMIT_MEMLOCK")),
        # CAP_IPC_LOCK is the fifteenth capability.
        (65536, "0000000000004000", None),
    ],
)
def test_lockable_bytes_are_the_limit_less_what_is_locked(tmp_path, monkeypatch, limit, capabilities, expected):
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nVmLck:\t       8 kB\nCapEff:\t{capabilities}\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert read_environment({}, status).lockable == expected


def test_a_limit_speaks_with_its_name_and_both_numbers_and_what_to_do():
    access = HostAccess(DISCRETE, Environment(lockable=Room(1000, "RLIMIT_MEMLOCK")))
    assert access.why_not_pinned(1000) is None
    assert access.why_not_pinned(1001) == (
        "RLIMIT_MEMLOCK allows 1000 bytes of the 1001 to be locked; raise it with ulimit -l "
        "(Docker: --ulimit memlock=-1)"
    )


def test_a_coherent_device_reads_in_place_whatever_may_be_pinned():
    environment = Environment(is_pinning_disabled=True, lockable=Room(0, "RLIMIT_MEMLOCK"))
    assert HostAccess(COHERENT, environment).why_not_in_place(2**40) is None
    assert PIN in HostAccess(DISCRETE, environment).why_not_in_place(2**40)


@pytest.mark.parametrize(
    ("release", "is_enabled", "expected"),
    [
        ("6.1.0-18-amd64", False, None),
        ("4.19.128-microsoft-standard", True, None),
        ("4.19.128-microsoft-standard", False, "VLLM_WSL2_ENABLE_PIN_MEMORY=1"),
        ("4.19.104-microsoft-standard", True, "from kernel 4.19.121 on"),
        ("4.4.0-19041-Microsoft", True, "from kernel 4.19.121 on"),
    ],
)
def test_R26_wsl_needs_a_kernel_and_its_owners_word(release, is_enabled, expected):
    environment = Environment(is_wsl_pinning_enabled=is_enabled, kernel_release=release)
    reason = HostAccess(DISCRETE, environment).why_not_pinned(1)
    assert reason is None if expected is None else expected in reason
