"""The common decoder on the CPU kernels: one call for all layers that are in place, over the same parameters."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from pyvllm.layers.kernels import TYPES, Kernels, KernelStep, Matrix
from pyvllm.layers.layernorm import RMSNorm
from pyvllm.layers.linear import Linear
from pyvllm.layers.mlp import SparseMoeBlock
from pyvllm.layers.scope import LayerScope

if TYPE_CHECKING:
    from pyvllm.layers.decoder import Attention, DecoderModel


class KernelDecoder:
    """Computes a DecoderModel's forward pass with the kernels. Holds addresses of its parameters, which stay put."""

    def __init__(self, model: "DecoderModel", kernels: Kernels) -> None:
        """Describe every layer to the kernels."""
        self._kernels = kernels
        self._dtype = model.norm.weight.dtype
        self._table = kernels.make_linear(*model.embed_tokens.rows())
        self._norm = model.norm
        self._rotary = model.rotary
        self._num_layers = len(model.layers)
        self._layers = kernels.ffi.new("struct vk_layer[]", self._num_layers)
        self._kept: list[Any] = []
        """What the layers point to."""
        for struct, layer in zip(self._layers, model.layers, strict=True):
            self._describe(struct, layer)
        self._link()

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, step: KernelStep, scope: LayerScope
    ) -> torch.Tensor:
        """token_ids, positions: [T] int64; [T, E] after the final norm."""
        kernels = self._kernels
        x = kernels.embed(self._table, token_ids, self._dtype)
        step.rotate_by(*self._rotary.angles(positions))
        first = 0
        while first < self._num_layers:
            last = first + 1
            if not scope.is_streamed(first):
                while last < self._num_layers and not scope.is_streamed(last):
                    last += 1
            with scope.layer(first):
                kernels.run_layers(self._layers + first, last - first, step, x)
            first = last
        return kernels.rms_norm(x, self._norm.weight, self._norm.eps)

    def read_next(self, head: Matrix) -> None:
        """Say that the head is read after the last layer, and the first layer after the head. It must outlive both."""
        linears = self._linears()
        linears[-1].next, head.struct.next = head.struct, self._kernels.ffi.addressof(linears[0])

    def _linears(self) -> list[Any]:
        """The projections in the order in which they are read, and None where experts are chosen in between."""
        linears: list[Any] = []
        for layer in self._layers:
            linears += (layer.attention.qkv, layer.attention.o)
            linears += (layer.mlp.gate_up, layer.mlp.down) if layer.mlp else (layer.moe.router, None, layer.moe.down)
        return linears

    def _link(self) -> None:
        for linear, following in pairwise(self._linears()):
            if linear is not None and following is not None:
                linear.next = self._kernels.ffi.addressof(following)

    def _describe(self, struct: Any, layer: Any) -> None:
        kernels = self._kernels
        attention, feed_forward = _attention(layer, kernels), _feed_forward(layer, kernels)
        self._kept += (attention, feed_forward)
        struct.attention = attention
        if isinstance(layer.feed_forward, SparseMoeBlock):
            struct.moe = feed_forward
        else:
            struct.mlp = feed_forward


def _attention(layer: Any, kernels: Kernels) -> Any:
    """Describe x += o(attend(rotate(qkv(norm(x)))))."""
    module, norm = layer.self_attn, layer.input_layernorm
    struct = kernels.ffi.new("struct vk_attention *")
    _set_linear(kernels, struct.qkv, module.qkv_proj)
    _set_linear(kernels, struct.o, module.o_proj)
    struct.input_norm = kernels.pointer(norm.weight)
    struct.q_norm, struct.k_norm = _weight_of(kernels, module.q_norm), _weight_of(kernels, module.k_norm)
    struct.layer, struct.window = module.layer, module.window or 0
    struct.num_heads, struct.num_kv_heads, struct.head_dim = _heads(module)
    struct.type, struct.scale, struct.norm_eps = TYPES[norm.weight.dtype], module.head_dim**-0.5, norm.eps
    return struct


def _feed_forward(layer: Any, kernels: Kernels) -> Any:
    """Describe x += down(silu(gate) * up) of norm(x)."""
    module, norm = layer.feed_forward, layer.post_attention_layernorm
    if isinstance(module, SparseMoeBlock):
        return _experts(module, norm, kernels)
    struct = kernels.ffi.new("struct vk_mlp *")
    _set_linear(kernels, struct.gate_up, module.gate_up_proj)
    _set_linear(kernels, struct.down, module.down_proj)
    struct.norm = kernels.pointer(norm.weight)
    struct.type, struct.norm_eps = TYPES[norm.weight.dtype], norm.eps
    return struct


def _experts(module: SparseMoeBlock, norm: RMSNorm, kernels: Kernels) -> Any:
    """Describe x += the weighted sum of each token's experts, of norm(x)."""
    struct = kernels.ffi.new("struct vk_moe *")
    _set_linear(kernels, struct.router, module.gate)
    kernels.set_linear(struct.gate_up, *module.experts.rows("w13_weight"))
    kernels.set_linear(struct.down, *module.experts.rows("w2_weight"))
    struct.norm, struct.norm_eps = kernels.pointer(norm.weight), norm.eps
    struct.num_experts, struct.top_k = struct.router.n, module.top_k
    struct.is_normalised, struct.type = module.norm_topk_prob, TYPES[norm.weight.dtype]
    return struct


def _set_linear(kernels: Kernels, linear: Any, module: Linear) -> None:
    kernels.set_linear(linear, *module.rows(), module.bias)


def _weight_of(kernels: Kernels, norm: RMSNorm | None) -> Any:
    return kernels.pointer(None if norm is None else norm.weight)


def _heads(module: "Attention") -> tuple[int, int, int]:
    return module.num_heads, module.num_kv_heads, module.head_dim
