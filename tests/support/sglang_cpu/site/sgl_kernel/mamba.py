"""Stand-ins for the gated delta net: its convolution, its rule, and the states of both.

The slots of the states: `[slot, value head, value, key]`, and `[slot, channel, inputs]` of the convolution. A step that
verifies drafts changes neither: it keeps both as they are after each of its tokens, and `scatter_states_cpu` takes over
those of the tokens that were accepted. Drafts are a chain, never a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# mypy does not find it, since it is on the path of SGLang's processes only: hence the two `untyped-decorator`
from sgl_kernel import op


def _convolved(inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """The causal convolution of each channel, `[sequence, channel, token]`; `inputs` begins with the earlier ones."""
    bias = None if bias is None else bias.float()
    out = functional.conv1d(inputs.float(), weight.float().unsqueeze(1), bias, groups=inputs.shape[1])
    return functional.silu(out) if activation else out


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    **_: object,
) -> Tensor:
    """Prompts, or parts of them, one behind the other in `[channel, token]`. Changes the states."""
    out, earlier = torch.empty_like(x), weight.shape[1] - 1
    for number, (first, last) in enumerate(pairwise(query_start_loc.tolist())):
        state = conv_states[int(cache_indices[number])]
        before = state if bool(has_initial_state[number]) else torch.zeros_like(state)
        inputs = torch.cat([before[:, -earlier:].to(x.dtype), x[:, first:last]], dim=1)
        out[:, first:last] = _convolved(inputs[None], weight, bias, activation)[0].to(x.dtype)
        state[:, -earlier:] = inputs[:, -earlier:].to(state.dtype)
    return out


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    conv_state_indices: Tensor,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    **_: object,
) -> Tensor:
    """The next token of each sequence, `[sequence, channel]`, or drafts to verify, `[sequence, channel, token]`."""
    assert retrieve_next_token is None
    earlier = weight.shape[1] - 1
    new = x if x.dim() == 3 else x.unsqueeze(-1)
    slots = conv_state_indices[: len(x)].long()
    inputs = torch.cat([conv_states[slots, :, -earlier:].to(x.dtype), new], dim=2)
    out = _convolved(inputs, weight, bias, activation).to(x.dtype)
    if intermediate_conv_window is None:
        conv_states[slots, :, -earlier:] = inputs[:, :, -earlier:].to(conv_states.dtype)
    else:
        assert intermediate_state_indices is not None
        for token in range(new.shape[2]):
            window = inputs[:, :, token + 1 : token + 1 + earlier]
            intermediate_conv_window[intermediate_state_indices[: len(x)].long(), token] = window.to(
                intermediate_conv_window.dtype
            )
    # in memory token by token, as a kernel writes it: SGLang takes views of it
    return out.transpose(1, 2).contiguous().transpose(1, 2).reshape(x.shape)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, keep: Callable[[int, Tensor], None]
) -> Tensor:
    """The gated delta rule token by token (arXiv 2412.06464), in float32.

    `q`, `k`, `v` are `[sequence, token, head, dimension]`, with fewer heads of `q` and `k`; the logarithm of the decay
    `g` and `beta` are `[sequence, token, head]`. Changes `state` in place; `keep` gets it after each token.
    """
    group = v.shape[2] // k.shape[2]
    q, k = (_unit(x.float()).repeat_interleave(group, dim=2) for x in (q, k))
    q, v, decay, beta = q * q.shape[-1] ** -0.5, v.float(), g.float().exp(), beta.float()
    out = torch.empty_like(v)
    for token in range(v.shape[1]):
        state.mul_(decay[:, token, :, None, None])
        known = (state @ k[:, token, :, :, None]).squeeze(-1)
        delta = (v[:, token] - known) * beta[:, token, :, None]
        state.add_(delta[..., None] * k[:, token, :, None, :])
        out[:, token] = (state @ q[:, token, :, :, None]).squeeze(-1)
        keep(token, state)
    return out


def _keep_none(token: int, state: Tensor) -> None:
    pass


@op  # type: ignore[untyped-decorator]
def fused_gdn_gating_cpu(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the decay, and beta, with a first axis of one."""
    g = -a_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return g.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


def chunk_gated_delta_rule_cpu(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    **_: object,
) -> tuple[Tensor, None, None]:
    """Prompts one behind the other, with a first axis of one. Changes the states."""
    out = torch.empty_like(v)
    for number, (first, last) in enumerate(pairwise(cu_seqlens.tolist())):
        slot = initial_state[int(initial_state_indices[number])]
        state, part = slot[None].float().clone(), slice(first, last)
        found = delta_rule(q[:, part], k[:, part], v[:, part], g[:, part], beta[:, part], state, _keep_none)
        out[:, part] = found.to(v.dtype)
        slot.copy_(state[0])
    return out, None, None


@op  # type: ignore[untyped-decorator]
def fused_sigmoid_gating_delta_rule_update_cpu(
    *,
    A_log: Tensor,  # noqa: N803 - as SGLang calls it
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    **_: object,
) -> Tensor:
    """As many tokens of each sequence, one sequence behind the other, with a first axis of one."""
    assert retrieve_parent_token is None
    sequences = len(cu_seqlens) - 1

    def apart(x: Tensor) -> Tensor:
        return x.reshape(sequences, -1, *x.shape[2:])

    def keep(token: int, state: Tensor) -> None:
        if intermediate_states_buffer is not None:
            assert intermediate_state_indices is not None
            kept = state.to(intermediate_states_buffer.dtype)
            intermediate_states_buffer[intermediate_state_indices[:sequences].long(), token] = kept

    slots = initial_state_indices[:sequences].long()
    state = initial_state_source[slots].float()
    g, beta = fused_gdn_gating_cpu(A_log, a.reshape(-1, v.shape[2]), b.reshape(-1, v.shape[2]), dt_bias)
    out = delta_rule(apart(q), apart(k), apart(v), apart(g), apart(beta), state, keep)
    if not disable_state_update:
        initial_state_source[slots] = state.to(initial_state_source.dtype)
    return out.to(v.dtype).reshape(v.shape)


def scatter_states_cpu(
    caches: Any,
    slots: Tensor,
    steps: Tensor,
    tracked: Tensor | None = None,
    tracked_steps: Tensor | None = None,
    src_indices_raw: Tensor | None = None,
) -> None:
    """Take over the states after the last accepted token of each sequence, in all layers."""
    assert tracked is None, "without a prefix cache no state is tracked"
    assert src_indices_raw is None
    pairs = [
        (caches.temporal, caches.intermediate_ssm),
        *zip(caches.conv, caches.intermediate_conv_window, strict=True),
    ]
    for number, (slot, step) in enumerate(zip(slots.tolist(), steps.tolist(), strict=True)):
        for states, kept in pairs:
            states[:, slot] = kept[:, number, step].to(states.dtype)
