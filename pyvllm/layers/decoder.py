"""The pre-norm decoder that all families here share; what differs comes in as `DecoderTraits`."""

import torch
import torch.nn.functional as F
from torch import nn

from pyvllm.config.model import ModelConfig
from pyvllm.layers.attention import AttentionContext, kernel_step_of
from pyvllm.layers.decoder_weights import DecoderTraits
from pyvllm.layers.kernel_decoder import KernelDecoder
from pyvllm.layers.layernorm import RMSNorm
from pyvllm.layers.linear import Embedding, Linear
from pyvllm.layers.mlp import MLP, SparseMoeBlock
from pyvllm.layers.parameter import Weights, kernels_of
from pyvllm.layers.rotary_embedding import RotaryEmbedding, rotate
from pyvllm.layers.scope import LayerScope

#: (cos, sin) of a step's positions, as RotaryEmbedding gives them.
Rotation = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Grouped-query attention of one layer; keys and values are kept by the step's AttentionContext."""

    def __init__(self, config: ModelConfig, traits: DecoderTraits, weights: Weights, layer: int) -> None:
        super().__init__()
        prefix = f"model.layers.{layer}.self_attn"
        self.layer, self.window, self.head_dim = layer, traits.windows[layer], config.head_dim
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = Linear(weights, f"{prefix}.qkv_proj", bias=traits.qkv_bias)
        self.o_proj = Linear(weights, f"{prefix}.o_proj", bias=traits.o_bias)
        self.q_norm = RMSNorm(weights, f"{prefix}.q_norm", config.rms_norm_eps) if traits.qk_norm else None
        self.k_norm = RMSNorm(weights, f"{prefix}.k_norm", config.rms_norm_eps) if traits.qk_norm else None

    def forward(self, x: torch.Tensor, rotation: Rotation, attention: AttentionContext) -> torch.Tensor:
        """x: [T, E]; [T, E]. Queries and keys are rotated together: they are neighbours in the fused projection."""
        heads = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        num_heads, num_rotated = self.num_heads, self.num_heads + self.num_kv_heads
        qk, v = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat((self.q_norm(qk[:, :num_heads]), self.k_norm(qk[:, num_heads:])), dim=1)
        qk = rotate(qk, *rotation)
        mixed = attention.attend(self.layer, qk[:, :num_heads], qk[:, num_heads:], v, self.window)
        out: torch.Tensor = self.o_proj(mixed.reshape(x.shape[0], -1))
        return out


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each on a normalised copy and added to the stream."""

    def __init__(self, config: ModelConfig, traits: DecoderTraits, weights: Weights, layer: int) -> None:
        super().__init__()
        prefix = f"model.layers.{layer}"
        self.self_attn = Attention(config, traits, weights, layer)
        self.feed_forward_name = "mlp"
        if traits.experts is not None and config.is_sparse(layer):
            self.feed_forward_name = traits.experts.block
            block: nn.Module = SparseMoeBlock(config, traits.experts, weights, f"{prefix}.{traits.experts.block}")
        else:
            block = MLP(weights, f"{prefix}.mlp", bias=traits.mlp_bias)
        self.add_module(self.feed_forward_name, block)
        self.input_layernorm = RMSNorm(weights, f"{prefix}.input_layernorm", config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(weights, f"{prefix}.post_attention_layernorm", config.rms_norm_eps)

    @property
    def feed_forward(self) -> nn.Module:
        """The feed-forward block, whatever its name."""
        block: nn.Module = getattr(self, self.feed_forward_name)
        return block

    def forward(self, x: torch.Tensor, rotation: Rotation, attention: AttentionContext) -> torch.Tensor:
        """x: [T, E]; [T, E]."""
        x = x + self.self_attn(self.input_layernorm(x), rotation, attention)
        out: torch.Tensor = self.feed_forward(self.post_attention_layernorm(x))
        return x + out


class DecoderModel(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: ModelConfig, traits: DecoderTraits, weights: Weights) -> None:
        super().__init__()
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(DecoderLayer(config, traits, weights, layer) for layer in layers)
        self.embed_tokens = Embedding(weights, "model.embed_tokens")
        self.norm = RMSNorm(weights, "model.norm", config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config, self.norm.weight.device)
        kernels = kernels_of(weights)
        self.kernel_decoder = None if kernels is None else KernelDecoder(self, kernels)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionContext, scope: LayerScope
    ) -> torch.Tensor:
        """token_ids, positions: [T] int64; [T, E]."""
        step = kernel_step_of(attention)
        if self.kernel_decoder is not None and step is not None:
            return self.kernel_decoder.forward(token_ids, positions, step, scope)
        x = self.embed_tokens(token_ids)
        rotation = self.rotary(positions, x.dtype)
        for index, layer in enumerate(self.layers):
            with scope.layer(index):
                x = layer(x, rotation, attention)
        hidden: torch.Tensor = self.norm(x)
        return hidden


class DecoderForCausalLM(nn.Module):
    """A decoder with its head: the whole of a family's model, once its traits are known."""

    def __init__(self, config: ModelConfig, traits: DecoderTraits, weights: Weights) -> None:
        super().__init__()
        self.model = DecoderModel(config, traits, weights)
        # The same module under two names: named_parameters() gives a tied table once, under the first.
        tied = config.tie_word_embeddings
        self.lm_head: Embedding | Linear = self.model.embed_tokens if tied else Linear(weights, "lm_head")
        self.kernels = kernels_of(weights)
        self._head = None if self.kernels is None else self.kernels.make_linear(*self.lm_head.rows())
        if self._head is not None and self.model.kernel_decoder is not None:
            self.model.kernel_decoder.read_next(self._head)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionContext, scope: LayerScope
    ) -> torch.Tensor:
        """Run the tokens of one step; token_ids, positions: [T] int64. Returns [T, E] after the final norm."""
        hidden: torch.Tensor = self.model(token_ids, positions, attention, scope)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, V] for hidden states [N, E]."""
        if self.kernels is not None and self._head is not None:
            return self.kernels.linear(self._head, hidden.contiguous())
        return F.linear(hidden, self.lm_head.read(self.lm_head.weight, hidden.shape[0]))
