"""Installs the fake CUDA runtime before torch is imported; this folder's tests run in a process of their own.

`python -m tests.fakecuda` runs them. In any other test run the folder is empty, because that process has torch.
"""

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


@pytest.fixture
def machine():
    """The imagined device with nothing allocated, before and after."""
    MACHINE.reset()
    assert not any(MACHINE.held().values()), f"an earlier test left {MACHINE.held()}"
    yield MACHINE
    MACHINE.reset()


@pytest.fixture
def device(machine):
    """Its compute stream."""
    from tests.fakecuda.device_tensor import Device

    made = Device(machine)
    yield made
    made.close()


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
