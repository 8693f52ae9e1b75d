"""The CPU kernels, where a test needs them."""

from tests.kernels.conftest import kernels

__all__ = ["kernels"]
