"""Builds plans from bare sizes, for tests that need no model."""

from pyvllm.config.model import WeightSpec, single
from pyvllm.config.offload import OffloadConfig
from pyvllm.offloader.plan import Capacity, Demand, Plan, make_plan

ROOMY = Capacity(None, 2**50, "cpu", "none", "MemAvailable", is_one_pool=False)


def layer_specs(sizes: dict[str, int], n_layers: int) -> list[WeightSpec]:
    """Weights of `n_layers` equal layers; `sizes` are bytes by name in the layer (2 bytes an element)."""
    return [
        single(f"model.layers.{layer}.{name}", layer, "bfloat16", (nbytes // 2,))
        for layer in range(n_layers)
        for name, nbytes in sizes.items()
    ]


def plan_of(specs: list[WeightSpec], document: dict[str, object], capacity: Capacity = ROOMY) -> Plan:
    """The plan of some weights under an offload document."""
    return make_plan("TestForCausalLM", specs, OffloadConfig.from_dict(document), Demand(0, 1, 0, 0), capacity)


def uva(budget: int, params: list[str] | None = None) -> dict[str, object]:
    """An uva document with an exact budget in bytes."""
    return {"offload_backend": "uva", "uva": {"cpu_offload_gb": budget / 1024**3, "cpu_offload_params": params or []}}


def prefetch(group: int, num: int = 1, step: int = 1, params: list[str] | None = None) -> dict[str, object]:
    """A prefetch document."""
    fields = {"offload_group_size": group, "offload_num_in_group": num, "offload_prefetch_step": step}
    return {"prefetch": {**fields, "offload_params": params or []}}
