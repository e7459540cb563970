"""Random steps of speculative decoding through the CPU engine's own linear-attention layer, against its definition.

Run as a script in a process with the patches; prints the greatest deviation and how many steps it took, as JSON. As
arguments `unpatched` takes the module as it is installed, `native` the branch of processors with AMX instead of that of
all others, `rejecting` accepts no draft token.
"""

import json
import random
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.support.cpu_modules import engine_module

MODULE = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
WIDTH, DRAFTS, HEADS, SIZE = 4, 7, 2, 32
DIM = 3 * HEADS * SIZE
STATE_LEN = WIDTH - 1 + DRAFTS
STEPS, SEQUENCES = 200, 3


@dataclass
class Sequence:
    """What a sequence has been through: its accepted inputs, the state after them, what of the last step counts."""

    inputs: torch.Tensor = field(default_factory=lambda: torch.zeros(WIDTH - 1, DIM))
    state: torch.Tensor = field(default_factory=lambda: torch.zeros(HEADS, SIZE, SIZE))
    accepted: int = 1


class Layer:
    """What the engine's code asks of a layer, with random weights and an empty cache."""

    def __init__(self, *, native: bool) -> None:
        self.weight = torch.randn(DIM, WIDTH).bfloat16() / 2
        packed = torch.ops._C.causal_conv1d_weight_pack(self.weight.clone()) if native else self.weight.unsqueeze(1)
        self.conv1d = SimpleNamespace(weight=packed, bias=None, _cpu_unpacked_conv_weight=self.weight)
        self.activation = "silu"
        self.A_log, self.dt_bias = torch.randn(HEADS), torch.randn(HEADS).bfloat16()
        slots = SEQUENCES * (DRAFTS + 1)
        self.buffer = torch.zeros(slots, STATE_LEN, DIM, dtype=torch.bfloat16).transpose(1, 2)
        self.states = torch.zeros(slots, HEADS, SIZE, SIZE)

    def rearrange_mixed_qkv(self, mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, as the layer of Qwen3.5 splits them."""
        query, key, value = mixed.view(1, -1, 3, HEADS, SIZE).unbind(2)
        return query.contiguous(), key.contiguous(), value.contiguous()

    def defined(self, sequence: Sequence, inputs: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """What these inputs come to behind the sequence's, one after the other; the sequence stays as it is."""
        window = torch.cat([sequence.inputs[-(WIDTH - 1) :], inputs.float()])
        mixed = torch.nn.functional.conv1d(window.T, self.weight.float().unsqueeze(1), groups=DIM).T
        mixed = torch.nn.functional.silu(mixed).bfloat16().float()
        outputs, states, state = [], [], sequence.state
        for row, (asked, named, value) in enumerate(mixed.view(-1, 3, HEADS, SIZE)):
            decay = torch.exp(-self.A_log.exp() * torch.nn.functional.softplus(a[row].float() + self.dt_bias))
            query, key = (torch.nn.functional.normalize(one, dim=-1) for one in (asked, named))
            state = state * decay[:, None, None]
            change = (value - torch.einsum("hk,hkv->hv", key, state)) * torch.sigmoid(b[row].float())[:, None]
            state = state + torch.einsum("hk,hv->hkv", key, change)
            outputs.append(torch.einsum("hk,hkv->hv", query / SIZE**0.5, state))
            states.append(state)
        self.after = states
        return torch.stack(outputs)


def play(module: ModuleType, *, native: bool, rejecting: bool) -> float:
    """The greatest deviation over all steps, each of which verifies and accepts random numbers of tokens."""
    torch.manual_seed(20261121)
    draw = random.Random(20261121)
    layer = Layer(native=native)
    sequences = [Sequence() for _ in range(SEQUENCES)]
    slots = torch.arange(SEQUENCES * (DRAFTS + 1), dtype=torch.int32).view(SEQUENCES, DRAFTS + 1)
    worst = 0.0
    for _ in range(STEPS):
        chosen = sorted(draw.sample(range(SEQUENCES), draw.randint(1, SEQUENCES)))
        same = draw.choice((DRAFTS + 1, draw.randint(1, DRAFTS + 1), None))
        lengths = [same or draw.randint(1, DRAFTS + 1) for _ in chosen]
        starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        inputs, a, b = (torch.randn(sum(lengths), size).bfloat16() for size in (DIM, HEADS, HEADS))
        metadata: Any = SimpleNamespace(
            num_spec_decodes=len(chosen),
            spec_state_indices_tensor=slots[chosen],
            spec_query_start_loc=starts,
            num_accepted_tokens=torch.tensor([sequences[one].accepted for one in chosen], dtype=torch.int32),
        )
        got = module._spec_forward(layer, metadata, inputs, b, a, layer.buffer, layer.states, WIDTH, STATE_LEN)
        for one, start, length in zip(chosen, starts.tolist(), lengths, strict=False):
            rows = slice(start, start + length)
            sequence = sequences[one]
            wanted = layer.defined(sequence, inputs[rows], a[rows], b[rows])
            worst = max(worst, (got.view(-1, HEADS, SIZE)[rows].float() - wanted).abs().max().item())
            sequence.accepted = 1 if rejecting else draw.randint(1, length)
            sequence.inputs = torch.cat([sequence.inputs, inputs[rows][: sequence.accepted].float()])
            sequence.state = layer.after[sequence.accepted - 1]
    return worst


def main() -> None:
    """Play, and print what came of it."""
    native = "native" in sys.argv
    # vLLM asks this for its branch. The native kernels need AVX512_BF16 only, and with AMX both branches can run
    torch.cpu._is_amx_tile_supported = torch.cpu._is_avx512_bf16_supported if native else lambda: False
    module = engine_module(MODULE)
    try:
        print(json.dumps({"worst": play(module, native=native, rejecting="rejecting" in sys.argv), "steps": STEPS}))
    except RuntimeError as problem:
        print(json.dumps({"died": str(problem)}))


if __name__ == "__main__":
    main()
