"""The common decoder on the CPU kernels: two calls a layer, over the same parameters as the torch computation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from pyvllm.layers.kernels import TYPES, Kernels, KernelStep
from pyvllm.layers.layernorm import RMSNorm
from pyvllm.layers.linear import Linear
from pyvllm.layers.mlp import SparseMoeBlock
from pyvllm.layers.scope import LayerScope

if TYPE_CHECKING:
    from pyvllm.layers.decoder import Attention, DecoderModel

#: Computes a half of a layer in place of x [T, E].
Half = Callable[[KernelStep, torch.Tensor], None]


class KernelDecoder:
    """Computes a DecoderModel's forward pass with the kernels. Holds addresses of its parameters, which stay put."""

    def __init__(self, model: "DecoderModel", kernels: Kernels) -> None:
        """Prepare the calls of every layer."""
        self._kernels = kernels
        self._dtype = model.norm.weight.dtype
        self._table = kernels.make_linear(*model.embed_tokens.rows())
        self._norm = model.norm
        self._rotary = model.rotary
        self._layers = [(_attention(layer, kernels), _feed_forward(layer, kernels)) for layer in model.layers]

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, step: KernelStep, scope: LayerScope
    ) -> torch.Tensor:
        """token_ids, positions: [T] int64; [T, E] after the final norm."""
        x = self._kernels.embed(self._table, token_ids, self._dtype)
        step.rotate_by(*self._rotary.angles(positions))
        for index, (attention, feed_forward) in enumerate(self._layers):
            with scope.layer(index):
                attention(step, x)
                feed_forward(step, x)
        return self._kernels.rms_norm(x, self._norm.weight, self._norm.eps)


def _attention(layer: Any, kernels: Kernels) -> Half:
    """Prepare x += o(attend(rotate(qkv(norm(x)))))."""
    module, norm = layer.self_attn, layer.input_layernorm
    struct = kernels.ffi.new("struct vk_attention *")
    _set_linear(kernels, struct.qkv, module.qkv_proj)
    _set_linear(kernels, struct.o, module.o_proj)
    struct.input_norm = kernels.pointer(norm.weight)
    struct.q_norm, struct.k_norm = _weight_of(kernels, module.q_norm), _weight_of(kernels, module.k_norm)
    struct.layer, struct.window = module.layer, module.window or 0
    struct.num_heads, struct.num_kv_heads, struct.head_dim = _heads(module)
    struct.type, struct.scale, struct.norm_eps = TYPES[norm.weight.dtype], module.head_dim**-0.5, norm.eps
    run = kernels.library.vk_attention_run
    return lambda step, x: kernels.check(run(struct, step.struct, kernels.pointer(x)))


def _feed_forward(layer: Any, kernels: Kernels) -> Half:
    """Prepare x += down(silu(gate) * up) of norm(x)."""
    module, norm = layer.feed_forward, layer.post_attention_layernorm
    if isinstance(module, SparseMoeBlock):
        return _experts(module, norm, kernels)
    struct = kernels.ffi.new("struct vk_mlp *")
    _set_linear(kernels, struct.gate_up, module.gate_up_proj)
    _set_linear(kernels, struct.down, module.down_proj)
    struct.norm = kernels.pointer(norm.weight)
    struct.type, struct.norm_eps = TYPES[norm.weight.dtype], norm.eps
    run = kernels.library.vk_mlp_run
    return lambda step, x: kernels.check(run(struct, step.struct, kernels.pointer(x)))


def _experts(module: SparseMoeBlock, norm: RMSNorm, kernels: Kernels) -> Half:
    """Prepare x += the weighted sum of each token's experts, of norm(x)."""
    struct = kernels.ffi.new("struct vk_moe *")
    _set_linear(kernels, struct.router, module.gate)
    kernels.set_linear(struct.gate_up, *module.experts.rows("w13_weight"))
    kernels.set_linear(struct.down, *module.experts.rows("w2_weight"))
    struct.norm, struct.norm_eps = kernels.pointer(norm.weight), norm.eps
    struct.num_experts, struct.top_k = struct.router.n, module.top_k
    struct.is_normalised, struct.type = module.norm_topk_prob, TYPES[norm.weight.dtype]
    run = kernels.library.vk_moe_run
    return lambda step, x: kernels.check(run(struct, step.struct, kernels.pointer(x)))


def _set_linear(kernels: Kernels, linear: Any, module: Linear) -> None:
    kernels.set_linear(linear, *module.rows(), module.bias)


def _weight_of(kernels: Kernels, norm: RMSNorm | None) -> Any:
    return kernels.pointer(None if norm is None else norm.weight)


def _heads(module: "Attention") -> tuple[int, int, int]:
    return module.num_heads, module.num_kv_heads, module.head_dim
