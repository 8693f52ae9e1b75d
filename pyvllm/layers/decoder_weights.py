"""The weights of a pre-norm decoder, from its configuration alone: names, shapes, order and sources. No torch.

A family says with `DecoderTraits` what it adds to the common decoder; `layers/decoder.py` computes from the same value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyvllm.config.model import ModelConfig, Source, WeightSpec, fused, single
from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.layers.rope_scaling import rope_scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTraits:
    """How a family's mixture of experts is called and sized."""

    block: str
    """Name of the feed-forward module in a layer."""
    gate_proj: str
    """Name of an expert's gate projection in the checkpoint; `up_proj` and `down_proj` likewise."""
    up_proj: str
    down_proj: str
    intermediate_size: int
    norm_topk_prob: bool
    """Whether the weights of the chosen experts are made to sum to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTraits:
    """What sets a family's decoder apart."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head before rotation."""
    windows: tuple[int | None, ...]
    """For each layer, how many tokens a token sees, or None for all."""
    experts: ExpertTraits | None = None
    """The mixture of experts of the config's sparse layers."""


def decoder_specs(config: ModelConfig, traits: DecoderTraits, dtype: str) -> list[WeightSpec]:
    """List a decoder's weights in the order in which an offloader considers them.

    Decoder layers first to last, each in vLLM's registration order, then embedding, final norm and head.
    Raises ModelLoadError or FormatError for a config that this decoder cannot compute.
    """
    _check(config, traits)
    specs: list[WeightSpec] = []
    for index in range(config.num_hidden_layers):
        layer = _Layer(config, traits, index, dtype)
        specs += [*layer.attention(), *layer.feed_forward(), *layer.norms()]
    return specs + _outside_layers(config, dtype)


def _check(config: ModelConfig, traits: DecoderTraits) -> None:
    if config.hidden_act != "silu":
        raise ModelLoadError(
            f"hidden_act {config.hidden_act!r} is not supported for {config.architecture}; supported: silu"
        )
    if config.head_dim % 2:
        raise FormatError(f"head_dim must be even for rotary positions, found {config.head_dim}")
    if traits.experts is not None and not 1 <= config.num_experts_per_tok <= config.num_experts:
        raise FormatError(
            f"num_experts_per_tok ({config.num_experts_per_tok}) must be from 1 to the number of experts "
            f"({config.num_experts}) for {config.architecture}"
        )
    rope_scaling(config)


@dataclass(frozen=True, slots=True)
class _Layer:
    """The specs of one decoder layer."""

    config: ModelConfig
    traits: DecoderTraits
    index: int
    dtype: str

    def name(self, name: str) -> str:
        return f"model.layers.{self.index}.{name}"

    def vector(self, name: str, size: int, kind: str) -> WeightSpec:
        return single(self.name(name), self.index, self.dtype, (size,), kind=kind)

    def projection(
        self, name: str, parts: Mapping[str, int], columns: int, *, kind: str, bias: bool = False
    ) -> list[WeightSpec]:
        """Stack the tensors `parts` (name beside the projection: rows), and their biases likewise."""
        block = name.rpartition(".")[0]
        shapes: dict[str, tuple[int, ...]] = {"weight": (columns,)} | ({"bias": ()} if bias else {})
        return [
            fused(
                self.name(f"{name}.{leaf}"),
                self.index,
                self.dtype,
                [Source(self.name(f"{block}.{part}.{leaf}"), (rows, *tail)) for part, rows in parts.items()],
                kind=kind,
            )
            for leaf, tail in shapes.items()
        ]

    def attention(self) -> list[WeightSpec]:
        """The attention's weights: q, k and v rows fused [(H + 2K) D, E], the output [E, H D], biases, norms [D].

        Biases and the norms of q and k are there where the family has them. Order: vLLM's registration.
        """
        config, traits = self.config, self.traits
        q_rows, kv_rows = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        out = {"o_proj": config.hidden_size}
        specs = [
            *self.projection("self_attn.qkv_proj", qkv, config.hidden_size, kind="attention", bias=traits.qkv_bias),
            *self.projection("self_attn.o_proj", out, q_rows, kind="attention", bias=traits.o_bias),
        ]
        if traits.qk_norm:
            specs += [self.vector(f"self_attn.{norm}.weight", config.head_dim, "norm") for norm in ("q_norm", "k_norm")]
        return specs

    def feed_forward(self) -> list[WeightSpec]:
        """The feed-forward's weights: gate and up rows fused [2I, E], down [E, I], biases where the family has them.

        A sparse layer has a router and experts instead.
        """
        if self.traits.experts is not None and self.config.is_sparse(self.index):
            return self.experts(self.traits.experts)
        hidden, size, bias = self.config.hidden_size, self.config.intermediate_size, self.traits.mlp_bias
        gate_up, down = {"gate_proj": size, "up_proj": size}, {"down_proj": hidden}
        return [
            *self.projection("mlp.gate_up_proj", gate_up, hidden, kind="dense", bias=bias),
            *self.projection("mlp.down_proj", down, size, kind="dense", bias=bias),
        ]

    def experts(self, names: ExpertTraits) -> list[WeightSpec]:
        """The router, then the experts stacked: gate and up rows of each in `w13_weight`, down rows in `w2_weight`."""
        hidden, size = self.config.hidden_size, names.intermediate_size
        up, down = {names.gate_proj: size, names.up_proj: size}, {names.down_proj: hidden}
        router = {"gate": self.config.num_experts}
        return [
            *self.projection(f"{names.block}.gate", router, hidden, kind="other"),
            self.stack(f"{names.block}.experts", "w13_weight", up, hidden),
            self.stack(f"{names.block}.experts", "w2_weight", down, size),
        ]

    def stack(self, block: str, leaf: str, parts: Mapping[str, int], columns: int) -> WeightSpec:
        """Stack the tensors `parts` (name within an expert: rows) of every expert, expert by expert."""
        config, prefix, rows_of_one = self.config, self.name(block), sum(parts.values())
        firsts, first = [], 0
        for part, rows in parts.items():
            firsts.append((part, (rows, columns), first))
            first += rows
        sources = [
            Source(f"{prefix}.{expert}.{part}.weight", shape, expert * rows_of_one + start)
            for expert in range(config.num_experts)
            for part, shape, start in firsts
        ]
        return WeightSpec(
            f"{prefix}.{leaf}",
            (config.num_experts, rows_of_one, columns),
            self.dtype,
            self.index,
            tuple(sources),
            kind="experts",
            num_experts=config.num_experts,
            experts_per_token=config.num_experts_per_tok,
        )

    def norms(self) -> list[WeightSpec]:
        names = ("input_layernorm.weight", "post_attention_layernorm.weight")
        return [self.vector(name, self.config.hidden_size, "norm") for name in names]


def _outside_layers(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    table = (config.vocab_size, config.hidden_size)
    tied = ("lm_head.weight",) if config.tie_word_embeddings else ()
    specs = [
        single("model.embed_tokens.weight", None, dtype, table, aliases=tied, kind="embedding"),
        single("model.norm.weight", None, dtype, (config.hidden_size,), kind="norm"),
    ]
    return specs if tied else [*specs, single("lm_head.weight", None, dtype, table, kind="head")]
