"""Which architectures there are, and where the two halves of each live. Nothing is imported before it is asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.errors import ModelLoadError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Entry point group through which installed packages add architectures: name = the architecture, value = a ModelEntry.
ENTRY_POINT_GROUP = "pyvllm.models"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One architecture."""

    architecture: str
    """The name that `architectures` of a config.json bears."""
    weights: str
    """`module:function` of `(config: ModelConfig, dtype: str) -> list[WeightSpec]`; a module that needs no torch."""
    model: str
    """`module:Class` of a `pyvllm.models.interfaces.CausalLM`."""
    supports_weight_offload: bool = False
    """Whether the model takes every parameter through `weights.take`, so that an offloader can place it."""
    known_extras: tuple[str, ...] = ()
    """Shell patterns of checkpoint tensors that may be left unread without a warning."""
    computes_stored: bool = False
    """Whether the model computes with quantised blocks as they are stored, where the CPU kernels are to be had."""

    def weight_specs(self, config: ModelConfig, dtype: str) -> list[WeightSpec]:
        """List the architecture's weights in the order in which an offloader considers them.

        dtype: a key of `config.model.DTYPE_BYTES`.
        Raises ModelLoadError if the config asks for something that the architecture does not do, or if the entry is
        broken.
        """
        specs = self._resolve(self.weights)(config, dtype)
        if not isinstance(specs, list) or not all(isinstance(spec, WeightSpec) for spec in specs):
            raise ModelLoadError(
                f"architecture {self.architecture!r}: {self.weights} must return a list of WeightSpec, "
                f"found {type(specs).__name__}"
            )
        return specs

    def model_class(self) -> type[Any]:
        """Import the model's class, a `pyvllm.models.interfaces.CausalLM`.

        Raises ModelLoadError if it is not where the entry says.
        """
        found = self._resolve(self.model)
        if not isinstance(found, type):
            raise ModelLoadError(f"architecture {self.architecture!r}: {self.model} must be a class, found {found!r}")
        return found

    def _resolve(self, reference: str) -> Any:
        module, _, name = reference.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ModelLoadError(
                f"architecture {self.architecture!r}: its entry names {reference!r}, which cannot be imported "
                f"({type(error).__name__}: {error}); it must read 'module:name'"
            ) from error


def _ours(architecture: str, family: str) -> ModelEntry:
    return ModelEntry(
        architecture,
        weights=f"pyvllm.models.{family}.weights:weight_specs",
        model=f"pyvllm.models.{family}.model:{architecture}",
        supports_weight_offload=True,
        computes_stored=True,
        # Rotary tables that old exports carry, and the second copy of a tied table that some do.
        known_extras=("*.rotary_emb.inv_freq", "lm_head.weight"),
    )


def _headless(architecture: str, family: str) -> ModelEntry:
    return replace(
        _ours(architecture, family),
        weights=f"pyvllm.models.headless.weights:{family}",
        model=f"pyvllm.models.headless.model:{architecture}",
    )


_ENTRIES = {
    entry.architecture: entry
    for entry in (
        _ours("LlamaForCausalLM", "llama"),
        _ours("MistralForCausalLM", "mistral"),
        _ours("MixtralForCausalLM", "mixtral"),
        _ours("Qwen2ForCausalLM", "qwen2"),
        _ours("Qwen3ForCausalLM", "qwen3"),
        _ours("Qwen3MoeForCausalLM", "qwen3_moe"),
        _headless("LlamaModel", "llama"),
        _headless("MistralModel", "mistral"),
        _headless("Qwen2Model", "qwen2"),
        _headless("Qwen3Model", "qwen3"),
    )
}


def lookup(architecture: str) -> ModelEntry:
    """Find an architecture: pyvllm's own, else one that an installed package registers.

    Raises ModelLoadError for one that is not known, registered twice, or registered with something that is no
    ModelEntry for it.
    """
    if architecture in _ENTRIES:
        return _ENTRIES[architecture]
    registered = list(_registered())
    points = [point for point in registered if point.name == architecture]
    if not points:
        known = ", ".join(sorted({*_ENTRIES, *(point.name for point in registered)}))
        raise ModelLoadError(
            f"architecture {architecture!r} is not supported; supported: {known}. An installed package can add it: "
            f"an entry point named {architecture!r} in group {ENTRY_POINT_GROUP!r} whose value is a "
            f"pyvllm.models.registry.ModelEntry"
        )
    if len({point.value for point in points}) > 1:
        values = ", ".join(sorted(point.value for point in points))
        raise ModelLoadError(
            f"architecture {architecture!r} is registered more than once ({values}); uninstall all but one"
        )
    return _load(points[0])


def _registered() -> Iterator["EntryPoint"]:
    # Imported late: it costs more than the whole refusal of a bad configuration, and our own table needs none of it.
    from importlib.metadata import entry_points

    yield from entry_points(group=ENTRY_POINT_GROUP)


def _load(point: "EntryPoint") -> ModelEntry:
    origin = f"architecture {point.name!r}: entry point {point.value!r} in group {ENTRY_POINT_GROUP!r}"
    try:
        entry = point.load()
    except Exception as error:
        # Whatever a stranger's module raises while it is imported is that module's defect.
        raise ModelLoadError(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from error
    if not isinstance(entry, ModelEntry):
        raise ModelLoadError(f"{origin} must be a pyvllm.models.registry.ModelEntry, found {type(entry).__name__}")
    if entry.architecture != point.name:
        raise ModelLoadError(f"{origin} is for architecture {entry.architecture!r}; the two names must be equal")
    return entry
