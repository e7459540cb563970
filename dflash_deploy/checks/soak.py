"""What a long load shows: leaks, stalls, lost sequences, dead drafts, errors, and answers that become slower.

Each decision is a function of samples and requests, without a clock. A slope is fitted to the medians of blocks of the
last half of the time: caches fill first, and neighbouring samples are not independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Annotated

from dflash_deploy.checks.check import CheckResult, CheckStatus
from dflash_deploy.document import Count, Documented, Keywords, Seconds

Part = Annotated[float, Keywords(minimum=0, maximum=1)]

BLOCKS, T_OF_BLOCKS = 8, 5.959
"""Blocks of a slope or of a comparison, and Student's t for 99.9 % and two parameters fewer."""

LEAST_S = 120.0
"""Seconds of a load below which no slope is fitted."""

GROWS = 0.01
"""Share of its level by which memory must grow in an hour to be a leak."""

STALL_S, SLOWER = 5.0, 5.0
"""Seconds without a token that are a stall, if they are also this multiple of the median of the longest silences."""

LOST, ENOUGH = 0.9, 5
"""Share of the KV cache above which requests wait for memory; samples with a queue that show how many run."""

FILLED = 0.02
"""Share of the KV cache that may be used without requests."""

BUSY = 2.0
"""Programs by processor above which stalls may be those of the machine: an engine on processors has about 1."""

SILENT_TOKENS = 200
"""Tokens without a single draft after which drafts are dead."""

DRIFT, LEAST_ANSWERS = 1.5, 4
"""How much slower answers of the last third may be than those of the first; answers of a block that is compared."""

MIB = 2**20


@dataclass(frozen=True)
class SoakSample(Documented):
    """The engine at one moment. `None` is what it does not report."""

    seconds: Seconds
    """Since the load began."""
    memory_bytes: Count | None = None
    """Host memory of the engine."""
    gpu_bytes: Count | None = None
    """Memory of all GPUs in use."""
    files: Count | None = None
    """Open files and sockets of the engine."""
    processes: Count | None = None
    """Processes of the engine."""
    running: Count | None = None
    """Requests that run."""
    waiting: Count | None = None
    """Requests that wait."""
    kv_cache: Part | None = None
    """Used share of the KV cache."""
    generated: Count | None = None
    """Tokens generated since the engine started."""
    drafts: Count | None = None
    """Drafts since the engine started."""
    load: Annotated[float, Keywords(minimum=0)] | None = None
    """Programs of this machine that run or wait for a processor, by processor: the mean of a minute."""


@dataclass(frozen=True)
class SoakRequest:
    """One request: when it was sent, its turn, TTFT and TPOT, and the longest time without a chunk, and its beginning.

    Times are in seconds, moments in seconds since the load began; `problem` is empty if it was answered.
    """

    began: float
    turn: int
    ttft: float
    tpot: float | None
    silent: float
    silent_at: float
    problem: str = ""


@dataclass(frozen=True)
class SoakLoad:
    """What was measured: samples under load, one before and one after it without requests, and the requests.

    `drafting`: whether drafts must be counted. `caches` are bytes by which the engine may grow, because its caches in
    host memory fill.
    """

    before: SoakSample
    samples: Sequence[SoakSample]
    after: SoakSample
    requests: Sequence[SoakRequest]
    drafting: bool
    caches: int = 0


def soak_checks(load: SoakLoad) -> Iterator[CheckResult]:
    """All verdicts."""
    yield _errors(load)
    yield _leak("memory", load, lambda one: one.memory_bytes, MIB, "MiB", allowed=load.caches)
    yield _leak("GPU memory", load, lambda one: one.gpu_bytes, MIB, "MiB")
    yield _leak("open files", load, lambda one: one.files, 1, "files")
    yield _leak("processes", load, lambda one: one.processes, 1, "processes")
    yield _sequences(load)
    yield _blocks(load)
    yield _drafts(load)
    yield _stalls(load)
    yield _drift(load)


def _result(name: str, status: CheckStatus, asked: str, got: str, hint: str = "") -> CheckResult:
    return CheckResult(name, status, 0.0, asked, got, hint if status == "failed" else "")


def slope_of(series: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The slope per second of a series by time, and half of its 99.9 % interval; `None` if it is too short."""
    if not series or series[-1][0] - series[0][0] < LEAST_S:
        return None
    half = (series[0][0] + series[-1][0]) / 2
    late = [one for one in series if one[0] >= half]
    if len(late) < 2 * BLOCKS:
        return None
    blocks = [late[len(late) * n // BLOCKS : len(late) * (n + 1) // BLOCKS] for n in range(BLOCKS)]
    points = [(fmean(at for at, _ in block), median(value for _, value in block)) for block in blocks]
    x, y = fmean(at for at, _ in points), fmean(value for _, value in points)
    width = sum((at - x) ** 2 for at, _ in points)
    slope = sum((at - x) * (value - y) for at, value in points) / width
    rest = sum((value - y - slope * (at - x)) ** 2 for at, value in points)
    return slope, T_OF_BLOCKS * math.sqrt(rest / (BLOCKS - 2) / width)


def _leak(
    name: str,
    load: SoakLoad,
    value: Callable[[SoakSample], int | None],
    unit: int,
    of: str,
    *,
    allowed: int = 0,
) -> CheckResult:
    """Whether a figure keeps growing: the lower end of its slope's interval, by the hour, is a share of its level."""
    asked = f"the {name} of the engine under load"
    series = [(one.seconds, float(found)) for one in load.samples if (found := value(one)) is not None]
    if not series:
        return _result(name, "skipped", asked, "it is unknown here")
    first, last = series[0][1] / unit, series[-1][1] / unit
    seen = f"from {first:,.0f} to {last:,.0f} {of}"
    slope = slope_of(series)
    if slope is None:
        return _result(name, "skipped", asked, f"{seen}; too short for a slope (2 minutes)")
    hourly, half = (3600 * part / unit for part in slope)
    said = f"{seen}, {hourly:+,.1f} ± {half:,.1f} {of} an hour"
    leaks = hourly - half > max(GROWS * max(first, last), 1.0)
    if leaks and max(found for _, found in series) - series[0][1] <= allowed:
        return _result(name, "passed", asked, f"{said}; within its caches of {allowed // MIB:,} MiB")
    hint = f"the engine does not give {name} back: restart it before it ends, and report it with `dflash-deploy logs`"
    return _result(name, "failed" if leaks else "passed", asked, said, hint)


def _sequences(load: SoakLoad) -> CheckResult:
    """Requests that the engine believes to run without any client, or fewer at once than before though some wait."""
    name, asked = "sequences", "requests that run, while others wait and after the load"
    if load.after.running is None or load.before.running is None:
        return _result(name, "skipped", asked, "the engine does not report running requests")
    hint = "the engine loses sequences: restart it, and report it with `dflash-deploy logs`"
    if (left := load.after.running - load.before.running) > 0:
        return _result(name, "failed", asked, f"{left} still run without a client", hint)
    full = [
        (one.seconds, one.running or 0)
        for one in load.samples
        if one.waiting and (one.kv_cache is None or one.kv_cache < LOST)
    ]
    quarter = load.samples[-1].seconds * 0.75 if load.samples else 0.0
    early = [running for at, running in full if at < quarter]
    late = [running for at, running in full if at >= quarter]
    if min(len(early), len(late)) < ENOUGH:
        return _result(name, "passed", asked, "none runs after the load; too few waited to count those at once")
    said = f"{max(early)} at once at first, {max(late)} at the end"
    return _result(name, "failed" if max(late) < max(early) else "passed", asked, said, hint)


def _blocks(load: SoakLoad) -> CheckResult:
    name, asked = "KV blocks", "the KV cache in use without requests, before and after"
    before, after = load.before.kv_cache, load.after.kv_cache
    if before is None or after is None:
        return _result(name, "skipped", asked, "the engine does not report its KV cache")
    said = f"{100 * before:.1f} % before, {100 * after:.1f} % after"
    hint = "blocks of ended requests stay in use: restart the engine, and report it with `dflash-deploy logs`"
    return _result(name, "failed" if after > before + FILLED else "passed", asked, said, hint)


def _drafts(load: SoakLoad) -> CheckResult:
    """Whether drafts stopped while tokens were still generated."""
    name, asked = "drafts", "the engine's counters of drafts"
    if not load.drafting:
        return _result(name, "skipped", asked, "the engine runs without counted drafts")
    known = [one for one in load.samples if one.drafts is not None and one.generated is not None]
    if not known:
        return _result(name, "skipped", asked, "the engine does not report drafts")
    last = known[-1]
    alive = next((one for one in known if one.drafts == last.drafts), last)
    silent = (last.generated or 0) - (alive.generated or 0)
    made = (last.drafts or 0) - (known[0].drafts or 0)
    if silent >= SILENT_TOKENS:
        said = f"none after {_clock(alive.seconds)}: {silent} tokens were generated without"
        return _result(name, "failed", asked, said, "the drafter stopped: restart the engine, and read its log")
    return _result(
        name, "passed", asked, f"{made:,} drafts for {(last.generated or 0) - (known[0].generated or 0):,} tokens"
    )


def _stalls(load: SoakLoad) -> CheckResult:
    """Times without a chunk that reading the prompts of others does not explain. Overlapping ones are one stall."""
    name, asked = "stalls", "the longest time without a token"
    answered = [one for one in load.requests if not one.problem]
    if not answered:
        return _result(name, "skipped", asked, "no request was answered")
    limit = max(STALL_S, SLOWER * median(one.silent for one in answered))
    ends, count = -1.0, 0
    for at, silent in sorted((one.silent_at, one.silent) for one in answered if one.silent > limit):
        count += at > ends
        ends = max(ends, at + silent)
    longest = max(answered, key=lambda one: one.silent)
    said = f"{longest.silent:.1f} s, after {_clock(longest.silent_at)}; {count} of more than {limit:.1f} s"
    hint = "the engine stops for seconds: read `dflash-deploy logs` for these times, and check the machine's memory"
    busy = median(one.load or 0.0 for one in load.samples) if load.samples else 0.0
    if count and busy > BUSY:
        said += f"; the machine was busy, with {busy:.1f} programs for each processor"
        hint = "repeat it while no other programs use the machine: the engine waited for a processor"
    return _result(name, "failed" if count else "passed", asked, said, hint)


def _drift(load: SoakLoad) -> CheckResult:
    """Whether the same turns become slower, by TTFT or TPOT, by more than chance."""
    name, asked = "latency", "answers of the last third and of the first third, turn by turn"
    answered = sorted((one for one in load.requests if not one.problem), key=lambda one: one.began)
    slower = {what: _slowdown(answered, time) for what, time in _TIMES.items()}
    known = {what: found for what, found in slower.items() if found is not None}
    if not known:
        return _result(name, "skipped", asked, "too few answers to compare")
    said = ", ".join(f"{what} {ratio:.2f} times (at least {least:.2f})" for what, (ratio, least) in known.items())
    drifts = any(ratio > DRIFT and least > 1 for ratio, least in known.values())
    hint = "the engine becomes slower with time: compare `dflash-deploy status` with a restarted one"
    return _result(name, "failed" if drifts else "passed", asked, said, hint)


_TIMES: Mapping[str, Callable[[SoakRequest], float | None]] = {
    "TTFT": lambda one: one.ttft,
    "TPOT": lambda one: one.tpot,
}


def _slowdown(
    answered: Sequence[SoakRequest], time: Callable[[SoakRequest], float | None]
) -> tuple[float, float] | None:
    """How many times longer turns take in the last third than in the first, and the lower end of its interval.

    Each time is divided by the median of its turn. The means of blocks are compared, since neighbouring requests share
    a queue. `None` if a block has fewer than LEAST_ANSWERS.
    """
    of_turns = defaultdict[int, list[float]](list)
    for one in answered:
        if found := time(one):
            of_turns[one.turn].append(found)
    usual = {turn: median(times) for turn, times in of_turns.items()}
    logs = [math.log(found / usual[one.turn]) for one in answered if (found := time(one))]
    third, each = len(logs) // 3, BLOCKS // 2
    if third < each * LEAST_ANSWERS:
        return None
    first, last = (
        [fmean(part[third * n // each : third * (n + 1) // each]) for n in range(each)]
        for part in (logs[:third], logs[-third:])
    )
    gain = fmean(last) - fmean(first)
    half = T_OF_BLOCKS * math.sqrt((variance(first) + variance(last)) / each)
    return math.exp(gain), math.exp(gain - half)


def _errors(load: SoakLoad) -> CheckResult:
    failed = [one for one in load.requests if one.problem]
    said = f"{len(failed)} of {len(load.requests)} failed"
    if failed:
        said += f", the first after {_clock(failed[0].began)}: {failed[0].problem}"
    right = bool(load.requests) and not failed
    return _result("errors", "passed" if right else "failed", "all requests", said, "read `dflash-deploy logs`")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
