"""Stand-in for the CPU build of SGLang's kernels, in torch: what SGLang 0.5.23 calls for the tiny models without AMX.

A kernel that is missing here raises NotImplementedError when it is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Also reach a stand-in as torch.ops.sgl_kernel.NAME, which is how SGLang calls most of its kernels."""
    setattr(torch.ops.sgl_kernel, function.__name__, function)
    return function


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return missing


@op
def init_cpu_threads_env(cpus: str) -> str:
    """Bind no threads."""
    return ""


def assign_req_to_token_pool_cpu(
    rows: Tensor, pool: Tensor, start: Tensor, end: Tensor, places: Tensor, width: int
) -> None:
    """Write the places of new tokens into each request's row of the pool; they are in order of the requests."""
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        pool[row, first:last] = places[at : at + last - first].to(pool.dtype)
        at += last - first


def assign_extend_cache_locs_cpu(
    rows: Tensor, pool: Tensor, start: Tensor, end: Tensor, places: Tensor, width: int
) -> None:
    """Read places out of each request's row of the pool into `places`."""
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        places[at : at + last - first] = pool[row, first:last].to(places.dtype)
        at += last - first


def copy_all_layer_kv_cache_cpu(addresses: Tensor, strides: Tensor, to: Tensor, of: Tensor) -> None:
    """Copy rows of each buffer, by their number. The buffers are named by their addresses."""
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + row * stride, stride) for row in of.tolist()]
        for place, row in zip(to.tolist(), rows, strict=True):
            ctypes.memmove(address + place * stride, row, stride)


def lengths_cpu(batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The lengths of each sequence of a batch: with its new tokens, before them, and their number."""
    if not batch.forward_mode.is_target_verify():
        return batch.seq_lens, batch.extend_prefix_lens, batch.extend_seq_lens
    new = batch.spec_info.draft_token_num
    return batch.seq_lens + new, batch.seq_lens, torch.full_like(batch.seq_lens, new)


@op
def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    """Multiply `x` by the sigmoid of the gate, in place."""
    x.mul_(torch.sigmoid(gate.reshape(x.shape).float()).to(x.dtype))


def _gemma(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.reshape(-1, weight.shape[0])
    return functional.rms_norm(x.float(), weight.shape, 1 + weight.float(), eps).to(x.dtype)


@op
def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Queries and keys, a head a row, each normalised and multiplied by one more than its weight."""
    return _gemma(q, q_weight, eps), _gemma(k, k_weight, eps)


@op
def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of heads that hold a query and then its gate."""
    q, gate = q_gate.reshape(-1, heads, 2 * head_dim).split(head_dim, dim=-1)
    return _gemma(q, q_weight, eps), _gemma(k, k_weight, eps), gate.reshape(-1, head_dim).contiguous()


@op
def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, k_heads: int, v_heads: int, k_dim: int, v_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The parts of both projections of the delta net."""
    qkv, z = qkvz.split([2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim], dim=-1)
    b, a = ba.split(v_heads, dim=-1)
    return qkv.contiguous(), z.reshape(-1, v_heads, v_dim).contiguous(), b.contiguous(), a.contiguous()


@op
def fused_rmsnorm_gated_cpu(x: Tensor, weight: Tensor, z: Tensor, eps: float) -> Tensor:
    """Normalise, then multiply by the SiLU of the gate."""
    y = functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return (y * functional.silu(z.float())).to(x.dtype)


from sgl_kernel import mamba  # noqa: E402, F401 - its operators
