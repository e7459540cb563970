"""The drafter: a DFlash block-diffusion model of two layers, with vLLM's weight names and arithmetic.

Keys and values for the text so far are computed from the target's hidden states, not from tokens. A block of queries
(the last verified token and seven masks) attends to them and, in both directions, to itself. Each mask yields the
draft token for its position. Embeddings and output head are the target's.
"""

# mypy treats torch as untyped here, so its Module is Any.
# mypy: allow-subclassing-any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .settings import BLOCK_SIZE, RMS_NORM_EPS, TARGET_LAYER_IDS

LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
INTERMEDIATE_SIZE = 512
ROPE_THETA = 1e4


class RmsNorm(nn.Module):
    """Root-mean-square norm, computed in float32 whatever the dtype of its input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, states: Tensor) -> Tensor:
        """Maps [..., size] to the same shape."""
        normed = functional.rms_norm(states.float(), self.weight.shape, eps=RMS_NORM_EPS)
        return (normed * self.weight).to(states.dtype)


class Rope(nn.Module):
    """Rotary positions in the half-split (neox) layout."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        exponents = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM
        self.register_buffer("frequencies", ROPE_THETA**-exponents, persistent=False)

    def forward(self, states: Tensor, positions: Tensor) -> Tensor:
        """Rotates `states` [..., length, heads, head_dim] by `positions` [..., length]."""
        angles = (positions[..., None].float() * self.frequencies)[..., None, :]
        cos, sin = angles.cos(), angles.sin()
        first, second = states.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(states.dtype)


class Attention(nn.Module):
    """Queries from the blocks; keys and values from the text before a block and from the block itself."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(hidden_size, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(hidden_size, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(hidden_size, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, hidden_size, bias=False)
        self.q_norm = RmsNorm(HEAD_DIM)
        self.k_norm = RmsNorm(HEAD_DIM)
        self.rope = Rope()

    def forward(self, blocks: Tensor, context: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Maps [batch, anchors, block, hidden] to the same shape.

        `context` [batch, length, hidden]; `positions` [batch, anchors, block]; `mask` [batch x anchors, 1, 1,
        length + block], true for the positions that a block may attend to.
        """
        q = self.rope(self.q_norm(_split_heads(self.q_proj(blocks))), positions)
        k = _context_and_block(self._keys(context, torch.arange(context.shape[1])), self._keys(blocks, positions))
        v = _context_and_block(_split_heads(self.v_proj(context)), _split_heads(self.v_proj(blocks)))
        mixed = _attend(q.flatten(0, 1).transpose(1, 2), k, v, mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2).view(*blocks.shape[:-1], -1))

    def _keys(self, states: Tensor, positions: Tensor) -> Tensor:
        return self.rope(self.k_norm(_split_heads(self.k_proj(states))), positions)


def _split_heads(states: Tensor) -> Tensor:
    """[..., heads x head_dim] to [..., heads, head_dim]."""
    return states.unflatten(-1, (-1, HEAD_DIM))


def _context_and_block(context: Tensor, blocks: Tensor) -> Tensor:
    """The keys or values that each block sees, [batch x anchors, heads, length + block, head_dim].

    `context` [batch, length, heads, head_dim] is shared by the `blocks` [batch, anchors, block, heads, head_dim].
    """
    shared = context[:, None].expand(-1, blocks.shape[1], -1, -1, -1)
    return torch.cat([shared, blocks], dim=2).flatten(0, 1).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention in single operations: for such small blocks on a CPU, torch's fused attention is several times slower.

    `q` [rows, heads, block, head_dim]; `k` and `v` [rows, kv heads, length, head_dim]; `mask` [rows, 1, 1, length].
    """
    grouped = q.unflatten(1, (KV_HEADS, -1)).flatten(2, 3)
    scores = (grouped @ k.transpose(-1, -2)) * HEAD_DIM**-0.5
    weights = scores.float().masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return (weights.to(v.dtype) @ v).view_as(q)


class Mlp(nn.Module):
    """The gated MLP of Qwen3."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, INTERMEDIATE_SIZE, bias=False)
        self.up_proj = nn.Linear(hidden_size, INTERMEDIATE_SIZE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE_SIZE, hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Maps [..., hidden] to the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


class Layer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual connection. The context is never updated."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(hidden_size)
        self.self_attn = Attention(hidden_size)
        self.post_attention_layernorm = RmsNorm(hidden_size)
        self.mlp = Mlp(hidden_size)

    def forward(self, blocks: Tensor, context: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Maps [batch, anchors, block, hidden] to the same shape; the other arguments as in `Attention`."""
        blocks = blocks + self.self_attn(self.input_layernorm(blocks), context, positions, mask)
        return blocks + self.mlp(self.post_attention_layernorm(blocks))


class Drafter(nn.Module):
    """Drafts blocks at several anchors of each sequence at once."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.fc = nn.Linear(len(TARGET_LAYER_IDS) * hidden_size, hidden_size, bias=False)
        self.hidden_norm = RmsNorm(hidden_size)
        self.layers = nn.ModuleList(Layer(hidden_size) for _ in range(LAYERS))
        self.norm = RmsNorm(hidden_size)

    def forward(self, features: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Final states of each block, [batch, anchors, block, hidden].

        `features` [batch, length, layers x hidden] are the target's; `blocks` [batch, anchors, block, hidden] the
        embedded queries; `anchors` [batch, anchors] the position of each block's first token.
        """
        context = self.hidden_norm(self.fc(features))
        positions = anchors[:, :, None] + torch.arange(BLOCK_SIZE)
        mask = _context_mask(anchors, features.shape[1])
        for layer in self.layers:
            blocks = layer(blocks, context, positions, mask)
        return self.norm(blocks)


def _context_mask(anchors: Tensor, length: int) -> Tensor:
    """A block sees the text before its anchor and all of itself, [batch x anchors, 1, 1, length + block]."""
    sees_context = torch.arange(length) < anchors.flatten()[:, None]
    sees_itself = torch.ones(len(sees_context), BLOCK_SIZE, dtype=torch.bool)
    return torch.cat([sees_context, sees_itself], dim=1)[:, None, None]
