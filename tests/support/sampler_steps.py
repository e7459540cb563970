"""The CPU engine's own sampler for drafts, against its definition.

Run as a script in a process with the patches; prints what it found as JSON. The argument `unpatched` takes the modules
as they are installed.
"""

import json
import random
from types import ModuleType

import torch

from tests.support.cpu_modules import engine_module

BATCHES, MOST_SEQUENCES, MOST_DRAFTS = 200, 5, 7
GREEDY = 0.0


def expanded_wrongly(sampler: ModuleType) -> int:
    """How many batches have a draft token with another temperature, top_p or top_k than its request."""
    draw = random.Random(20261122)
    wrong = 0
    for number in range(BATCHES):
        lengths = [draw.randint(0, MOST_DRAFTS) for _ in range(draw.randint(1, MOST_SEQUENCES))]
        whole = number % 3 == 2
        values = [draw.randint(1, 1024) if whole else draw.choice((GREEDY, draw.uniform(0.01, 2))) for _ in lengths]
        per_request = torch.tensor(values, dtype=torch.int32 if whole else torch.float32)
        ends = torch.tensor(lengths, dtype=torch.int32).cumsum(0).int()
        got = sampler.expand_batch_to_tokens(per_request, ends, sum(lengths), replace_from=0, replace_to=1)
        kept = [1 if value == GREEDY else value for value in per_request.tolist()]
        wanted = [value for value, length in zip(kept, lengths, strict=True) for _ in range(length)]
        wrong += got.tolist() != wanted
    return wrong


def top_k_of_no_drafts(sampling: ModuleType) -> str:
    """The error of a step without draft tokens; empty if there is none."""
    try:
        got = sampling.apply_top_k_top_p(torch.empty(0, 1024), torch.empty(0, dtype=torch.int32), None)
    except RuntimeError as problem:
        return str(problem)
    return "" if got.shape == (0, 1024) else f"{tuple(got.shape)}"


def main() -> None:
    """Run both, and print the findings."""
    platform = engine_module("vllm.platforms").current_platform
    platform.import_kernels()
    platform.register_triton_kernel_overrides()
    sampler = engine_module("vllm.v1.sample.rejection_sampler")
    print(json.dumps({"wrong": expanded_wrongly(sampler), "error": top_k_of_no_drafts(sampler)}))


if __name__ == "__main__":
    main()
