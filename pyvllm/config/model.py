"""What a model is: the typed fields of its `config.json`, and the weights its architecture has.

Plain values: no file is read here and nothing is imported that computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from pyvllm.errors import FormatError, ModelLoadError

#: Bytes of one element, by the name torch gives the dtype.
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of the checkpoint and the rows of a weight that it fills.

    A weight is seen as rows along its last axis (a one-dimensional weight: rows of one element), so fused projections
    and stacked experts are row ranges of one weight.
    """

    tensor: str
    """Hugging Face name of the tensor in the checkpoint."""
    shape: tuple[int, ...]
    """The shape that the tensor must have."""
    first_row: int = 0
    """First row of the weight that the tensor fills; it fills as many rows as it has."""
    stored_type: str = ""
    """Of a weight that is kept as it is stored: the block type of the tensor. Empty: expanded to the weight's dtype."""
    stored_bytes: int = 0
    """Of a weight that is kept as it is stored: bytes of the tensor."""

    @property
    def num_rows(self) -> int:
        """How many rows the tensor fills."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of a model, known from configuration alone."""

    name: str
    """Dotted name that vLLM gives the parameter, with fused parts."""
    shape: tuple[int, ...]
    dtype: str
    """torch's name of the element type, a key of `DTYPE_BYTES`; of a weight that is kept as it is stored, its block
    type, or that of every source where they differ, joined by `+`."""
    layer: int | None
    """Index of the decoder layer, or None for what is outside the layers."""
    sources: tuple[Source, ...]
    aliases: tuple[str, ...] = ()
    """Other names of the same weight (tied weights)."""
    kind: str = "other"
    """`attention`, `dense`, `experts`, `embedding`, `head`, `norm` or `other`: for tables, never for selection."""
    num_experts: int = 0
    """Of a stack of experts, how many; 0 otherwise."""
    experts_per_token: int = 0
    """Of a stack of experts, how many one token uses; 0 otherwise."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weight, nothing rounded."""
        if self.is_stored:
            return sum(source.stored_bytes for source in self.sources)
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def is_stored(self) -> bool:
        """Whether the weight is kept in the quantised blocks of its sources."""
        return bool(self.sources) and bool(self.sources[0].stored_type)

    @property
    def name_in_layer(self) -> str:
        """The name after the layer index; the whole name outside the layers."""
        return self.name.partition(f".{self.layer}.")[2] if self.layer is not None else self.name


def fused(name: str, layer: int | None, dtype: str, parts: list[Source], **more: object) -> WeightSpec:
    """Build the spec of a weight whose `parts` are stacked along the first axis, in order.

    parts: sources of equal trailing shape; their `first_row` is set here.
    """
    placed, row = [], 0
    for part in parts:
        placed.append(Source(part.tensor, part.shape, row))
        row += part.num_rows
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return WeightSpec(name, shape, dtype, layer, tuple(placed), **more)  # type: ignore[arg-type]


def single(name: str, layer: int | None, dtype: str, shape: tuple[int, ...], **more: object) -> WeightSpec:
    """Build the spec of a weight that one tensor of the same name fills."""
    return WeightSpec(name, shape, dtype, layer, (Source(name, shape),), **more)  # type: ignore[arg-type]


#: Fields whose presence means that the stored tensors are not plain weights.
_REFUSED_FIELDS = ("quantization_config", "compression_config", "auto_map", "custom_generate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The fields of `config.json` that the decoder architectures use, under Hugging Face's names."""

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, object] | None = None
    """`rope_type` and its numbers, or None when positions are not scaled."""
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    """Tokens that a sliding-window layer sees, or None."""
    sliding_layers: tuple[bool, ...] = ()
    """For each layer, whether it uses `sliding_window`; empty: all of them do."""
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = True
    sparse_layers: tuple[bool, ...] = ()
    """For each layer, whether its feed-forward is a mixture of experts; empty: none is."""
    torch_dtype: str | None = None
    """dtype that the checkpoint names, or None."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, or None for full attention."""
        if self.sliding_window is None or (self.sliding_layers and not self.sliding_layers[layer]):
            return None
        return self.sliding_window

    def is_sparse(self, layer: int) -> bool:
        """Whether the feed-forward of a layer is a mixture of experts."""
        return bool(self.sparse_layers) and self.sparse_layers[layer]


def architecture_of(document: Mapping[str, object], origin: str) -> str:
    """Name the one architecture of a `config.json` document.

    Raises ModelLoadError if the document names none or several.
    """
    names = document.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ModelLoadError(f"{origin}: 'architectures' must name exactly one architecture, found {names!r}")
    return names[0]


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to a `config.json` document; a wrong type is one error in one place."""

    document: Mapping[str, object]
    origin: str
    limits: Mapping[str, int] = field(default_factory=dict)

    def integer(self, name: str, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        """Give an integer from low to high; the default, where there is one, for a field that is null or absent.

        Raises FormatError for a value of another type or out of range, and for an absent one without a default.
        """
        value = self.document.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FormatError(f"{self.origin}: '{name}' must be an integer from {low} to {high}, found {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """Give a number above 0 and below 1e30, or the default. Raises FormatError for anything else."""
        value = self.document.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise FormatError(f"{self.origin}: '{name}' must be a positive number, found {value!r}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Give true or false, or the default. Raises FormatError for anything else, 0 and 1 included."""
        value = self.document.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FormatError(f"{self.origin}: '{name}' must be true or false, found {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        """Give a string, or the default. Raises FormatError for a value of another type."""
        value = self.document.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise FormatError(f"{self.origin}: '{name}' must be a string, found {value!r}")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Give one token id, or a list of them, as a tuple; empty for a field that is null or absent.

        Raises FormatError for what is no integer, or below 0. The vocabulary's size is for others to check.
        """
        value = self.document.get(name)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in listed):
            raise FormatError(f"{self.origin}: '{name}' must be a token id or a list of them, found {value!r}")
        return tuple(listed)


def model_config(document: Mapping[str, object], origin: str) -> ModelConfig:
    """Turn a `config.json` document into a ModelConfig.

    origin: what to call the document in errors, such as `config.json`.
    Raises ModelLoadError for a field that says the weights are not plain, FormatError for a bad value.
    Source of the names and defaults: the configuration classes of transformers 4 and 5 (`rope_parameters` and `dtype`
    are what 5 writes for `rope_scaling` with `rope_theta`, and for `torch_dtype`).
    """
    _refuse_what_is_not_plain(document, origin)
    get = _Fields(document, origin)
    hidden = get.integer("hidden_size", high=2**24)
    heads, kv_heads, head_dim = _heads(get, hidden)
    layers = get.integer("num_hidden_layers", high=10_000)
    num_experts = get.integer(
        "num_local_experts", get.integer("num_experts", 0, low=0, high=65_536), low=0, high=65_536
    )
    theta, scaling = _rope(get)
    intermediate = get.integer("intermediate_size", high=2**24)
    bos = get.token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture_of(document, origin),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        vocab_size=get.integer("vocab_size", high=2**26),
        max_position_embeddings=get.integer("max_position_embeddings", 2048),
        rms_norm_eps=get.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        hidden_act=get.text("hidden_act", "silu"),
        attention_bias=get.boolean("attention_bias", False),
        mlp_bias=get.boolean("mlp_bias", False),
        tie_word_embeddings=get.boolean("tie_word_embeddings", False),
        sliding_window=_sliding_window(get),
        sliding_layers=_sliding_layers(get, layers),
        num_experts=num_experts,
        num_experts_per_tok=get.integer("num_experts_per_tok", 0, low=0, high=num_experts) if num_experts else 0,
        moe_intermediate_size=get.integer("moe_intermediate_size", intermediate, high=2**24),
        norm_topk_prob=get.boolean("norm_topk_prob", False),
        sparse_layers=_sparse_layers(get, layers) if num_experts else (),
        torch_dtype=_dtype(get),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=get.token_ids("eos_token_id"),
    )


def _refuse_what_is_not_plain(document: Mapping[str, object], origin: str) -> None:
    for name in _REFUSED_FIELDS:
        if document.get(name) is not None:
            raise ModelLoadError(f"{origin}: '{name}' is not supported; give a checkpoint of plain weights")
    if document.get("partial_rotary_factor") not in (None, 1):
        found = document["partial_rotary_factor"]
        raise ModelLoadError(f"{origin}: 'partial_rotary_factor' {found!r} is not supported; supported: 1")


def _heads(get: _Fields, hidden: int) -> tuple[int, int, int]:
    """Give the numbers of query heads and of key-value heads, and the size of a head."""
    heads = get.integer("num_attention_heads", high=65_536)
    kv_heads = get.integer("num_key_value_heads", heads, high=65_536)
    if heads % kv_heads:
        raise FormatError(
            f"{get.origin}: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    if get.document.get("head_dim") is None and hidden % heads:
        raise FormatError(f"{get.origin}: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    return heads, kv_heads, get.integer("head_dim", hidden // heads, high=65_536)


def _dtype(get: _Fields) -> str | None:
    name = get.text("dtype", "") or get.text("torch_dtype", "")
    return name.removeprefix("torch.") or None


def _rope(get: _Fields) -> tuple[float, Mapping[str, object] | None]:
    parameters = get.document.get("rope_parameters") or get.document.get("rope_scaling")
    theta = get.number("rope_theta", 10000.0)
    if parameters is None:
        return theta, None
    if not isinstance(parameters, dict):
        raise FormatError(f"{get.origin}: the rope parameters must be an object, found {parameters!r}")
    inner = _Fields(parameters, f"{get.origin}: rope parameters")
    theta = inner.number("rope_theta", theta)
    kind = inner.text("rope_type", inner.text("type", "default"))
    if kind == "default":
        return theta, None
    return theta, {**parameters, "rope_type": kind}


def _sliding_window(get: _Fields) -> int | None:
    # Qwen's configurations name a window that is off unless `use_sliding_window` says otherwise.
    is_used = not architecture_of(get.document, get.origin).startswith("Qwen")
    if get.document.get("sliding_window") is None or not get.boolean("use_sliding_window", is_used):
        return None
    return get.integer("sliding_window")


def _sliding_layers(get: _Fields, layers: int) -> tuple[bool, ...]:
    kinds = get.document.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            raise FormatError(f"{get.origin}: 'layer_types' must list {layers} of {', '.join(known)}")
        return tuple(kind == "sliding_attention" for kind in kinds)
    if get.document.get("max_window_layers") is not None:
        full = get.integer("max_window_layers", low=0)
        return tuple(layer >= full for layer in range(layers))
    return ()


def _sparse_layers(get: _Fields, layers: int) -> tuple[bool, ...]:
    step = get.integer("decoder_sparse_step", 1)
    dense = get.document.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise FormatError(f"{get.origin}: 'mlp_only_layers' must be a list, found {dense!r}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
