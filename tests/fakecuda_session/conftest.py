"""Installs the fake CUDA runtime before torch is imported; this folder's tests run in a process of their own.

`python -m tests.fakecuda` runs them. In any other test run the folder is empty, because that process has torch.
"""

import gc
import os
import tempfile
from pathlib import Path

from tests.fakecuda.machine import install

if os.environ.get("PYVLLM_FAKE_CUDA") == "1":
    _BUILD = tempfile.TemporaryDirectory()
    MACHINE = install(Path(_BUILD.name))
else:
    collect_ignore_glob = ["*"]

import pytest

FAILED = pytest.StashKey[bool]()


@pytest.fixture
def machine():
    """The imagined device, every control at its start."""
    MACHINE.reset()
    yield MACHINE
    MACHINE.reset()


@pytest.fixture
def device(machine, request):
    """Its compute stream. A test that succeeds has left nothing else behind."""
    from tests.fakecuda.device_tensor import Device

    made = Device(machine)
    yield made
    made.close()
    gc.collect()
    failed = request.node.stash.get(FAILED, False)
    assert failed or not any(machine.held().values()), f"the test left {machine.held()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember failures: what a traceback holds is no leak."""
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Tiny models, written once: `models(architecture, **fields)` gives a directory."""
    from tests.tiny_models import write_tiny

    root, made = tmp_path_factory.mktemp("tiny"), {}

    def get(architecture, **fields):
        key = (architecture, tuple(sorted(fields.items())))
        if key not in made:
            made[key] = write_tiny(architecture, root / str(len(made)), **fields)
        return made[key]

    return get
