"""The fake answers as the runtime's documentation says, and its numbers are those of the real bindings."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from cuda.bindings import runtime

from tests.fakecuda import machine as fake
from tests.fakecuda.conformance import facts

ROOT = Path(__file__).parents[2]
KINDS = (
    "cudaError_t",
    "cudaMemcpyKind",
    "cudaMemoryType",
    "cudaDeviceAttr",
)


def numbers(directory: Path) -> dict[str, int]:
    """Names and values of the enums in engine.h, as the C compiler reads them."""
    text = (ROOT / "tests/fakecuda/engine.h").read_text()
    names = sorted(set(re.findall(r"\bcuda(?:Success|Error[A-Z]\w+|Memcpy\w+|MemoryType\w+|DevAttr\w+)", text)))
    lines = "".join(f'printf("%d\\n", (int){name});' for name in names)
    code = f'#include "engine.h"\n#include <stdio.h>\nint main(void) {{ {lines} }}'
    program = directory / "numbers"
    command = ["gcc", "-x", "c", "-", "-I", ROOT / "tests/fakecuda", "-o", program]
    subprocess.run(command, input=code.encode(), check=True)
    run = subprocess.run([program], capture_output=True, check=True)
    return dict(zip(names, map(int, run.stdout.split()), strict=True))


def test_every_number_of_the_header_is_the_bindings_number(tmp_path):
    found = numbers(tmp_path)
    assert len(found) > 20
    for name, value in found.items():
        kind = next(kind for kind in KINDS if hasattr(getattr(runtime, kind), name))
        assert int(getattr(getattr(runtime, kind), name)) == value, name


def test_it_refuses_to_be_installed_too_late(machine, tmp_path):
    with pytest.raises(fake.TooLate, match=r"before cuda\.bindings\.runtime is imported"):
        fake.install(tmp_path)


def test_a_function_that_is_not_modelled_says_so(machine):
    assert int(runtime.cudaGraphCreate(0)[0]) == 801


EXPECTED = {
    "malloc is aligned to 256": True,
    "malloc of 0": ["cudaSuccess", 0],
    "malloc of a pebibyte": "cudaErrorMemoryAllocation",
    "last error is forgotten once read": ["cudaErrorMemoryAllocation", "cudaSuccess"],
    "host alloc of 0": ["cudaSuccess", 0],
    "host alloc is page aligned": True,
    "host alloc is mapped": True,
    "device pointer equals host pointer": True,
    "device pointer inside a region": 12345,
    "device pointer with flags": "cudaErrorInvalidValue",
    "device pointer of pageable memory": "cudaErrorInvalidValue",
    "pointer types": [2, 1, 0],
    "event that was never recorded": ["cudaSuccess", "cudaSuccess", "cudaSuccess"],
    "a chain of two streams copies": True,
    "event that is over": "cudaSuccess",
    "elapsed time without timing": "cudaErrorInvalidResourceHandle",
    "copy of kind H2D between host addresses": "cudaErrorInvalidValue",
    "copy of kind default": "cudaSuccess",
    "copy of 0 bytes": "cudaSuccess",
    "free inside a region": "cudaErrorInvalidValue",
    "free of null": "cudaSuccess",
    "free of host memory inside a region": "cudaErrorInvalidValue",
    "free MiB after malloc of 64": 64,
    "free bytes come back": True,
    "register twice": ["cudaSuccess", "cudaErrorHostMemoryAlreadyRegistered"],
    "unregister twice": ["cudaSuccess", "cudaErrorHostMemoryNotRegistered"],
    "stream is capturing": 0,
    "stream destroyed with work": "cudaSuccess",
    "event destroyed": "cudaSuccess",
    "free with work": "cudaSuccess",
    "free twice": "cudaErrorInvalidValue",
}


def test_the_fake_gives_the_answers_that_the_documentation_promises(machine):
    assert facts(runtime) == EXPECTED


def test_the_fake_gives_the_answers_that_a_real_device_gave(machine):
    golden = ROOT / "tests/device/golden.json"
    if not golden.exists():
        pytest.skip("no real device has been asked yet: tests/device/run.sh writes tests/device/golden.json")
    assert facts(runtime) == json.loads(golden.read_text())["facts"]
