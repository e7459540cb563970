"""A run as `bench` leaves it, made up: two workloads, three numbers of streams, with the drafter and without."""

from dataclasses import replace
from typing import Any

from dflash_deploy.bench.figures import Row, Speculation, beside, row_of
from dflash_deploy.bench.load import Load, Round
from dflash_deploy.bench.sweep import with_speedups
from dflash_deploy.catalog.speeds import PublishedSpeed
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.serve.engines.counters import SpecCounters

PUBLISHED = PublishedSpeed(
    engine="vllm",
    profile="b200",
    pair="p",
    workload="HumanEval",
    concurrency=4,
    draft_tokens=15,
    plain=84,
    dflash=427,
    source="a card",
)


def timed(ttft: float, gap: float, chunks: int, tokens: int) -> TimedCompletion:
    """An answer of `chunks` pieces, `gap` seconds apart."""
    return TimedCompletion(
        ttft, ttft + gap * (chunks - 1), [gap] * (chunks - 1), prompt_tokens=20, completion_tokens=tokens
    )


def load(concurrency: int, *, tokens_per_chunk: int, gap: float, rounds: int = 1) -> Load:
    """Rounds of twelve answers with 70 tokens each, the later ones slower."""
    chunks = 70 // tokens_per_chunk
    answers = tuple(timed(0.02 * concurrency + 0.001 * n, gap * (1 + n / 20), chunks, 70) for n in range(12))
    seconds = sum(one.seconds for one in answers) / concurrency
    drafts = 120
    accepted = [drafts * (10 - position) // 10 for position in range(7)] if tokens_per_chunk > 1 else []
    counted = SpecCounters(drafts, drafts * 7, sum(accepted), tuple(accepted)) if accepted else SpecCounters()
    return Load(concurrency, (Round(answers, seconds),) * rounds, counted)


def rows() -> list[Row]:
    """Both halves; the gain falls with the number of streams."""
    drafted, plain = [], []
    for workload, slower in (("code", 1.0), ("prose & <verse>", 1.8)):
        for streams in (1, 4, 8):
            gap = 0.02 * slower * (1 + streams / 4)
            drafted.append(row_of(workload, load(streams, tokens_per_chunk=7, gap=gap), "dflash"))
            plain.append(row_of(workload, load(streams, tokens_per_chunk=1, gap=0.012 + streams / 1000), "off"))
    return with_speedups(drafted, plain)


def talked() -> dict[str, Any]:
    """What `bench -w agents --json` has as `data`: three turns of two agents."""
    made = []
    halves: tuple[tuple[int, Speculation, float], ...] = ((7, "dflash", 0.03), (1, "off", 0.01))
    for chunk, kind, gap in halves:
        loads = [replace(load(2, tokens_per_chunk=chunk, gap=gap), cached=60 * turn) for turn in (1, 2, 3)]
        made.append([row_of("agents", one, kind, turn=turn) for turn, one in enumerate(loads, 1)])
    rows = [row.document() for row in with_speedups(*made)]
    workloads = [{"name": "agents", "source": "packaged", "prompts": 0}]
    return {**document(), "workloads": workloads, "rows": rows, "published": []}


def document() -> dict[str, Any]:
    """What `bench --json` has as `data`."""
    made = rows()
    return {
        "measured": {
            "profile": "b200", "pair": "p", "engine": "vllm 0.33.0", "runtime": "compose", "model": "a <model>",
            "settings": {"DFLASH_NUM_SPEC_TOKENS": "7"}, "at": "2026-11-21 12:00 UTC", "version": "0.1.0",
            "max_tokens": 256, "temperature": 0.0, "thinking": False, "repeats": 1,
        },
        "workloads": [{"name": name, "source": "made up", "prompts": 12} for name in ("code", "prose & <verse>")],
        "rows": [row.document() for row in made],
        "published": [row.document() for row in beside([PUBLISHED], made)],
    }  # fmt: skip
