"""A trace is read within limits, and replayed with texts of its lengths, at its times."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.bench import trace as tracing
from dflash_deploy.bench.agent_figures import by_turn, of_trace, trace_verdicts, with_baseline
from dflash_deploy.bench.agents import TurnLoad
from dflash_deploy.bench.trace import LARGEST_TRACE, Trace, TraceLine, TraceLoad, read_trace
from dflash_deploy.bench.workload import Limits
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.client.stream import TimedCompletion
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.bench_agents import AgentsBenchmark
from dflash_deploy.serve.engines.counters import SpecCounters
from tests.support.measured import document

CHARACTERS, AROUND = 3, 9
"""Characters of a token, and tokens that the chat template adds."""


def line(at: float, prompt: int, *blocks: int, answer: int = 8) -> str:
    return json.dumps({"timestamp": at, "input_length": prompt, "output_length": answer, "hash_ids": blocks})


GOOD = (line(4000, 1200, 0, 1, 2), line(1000.5, 600, 0, 3), line(2000, 100))


def written(at: Path, *lines: str) -> Path:
    file = at / "trace.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_requests_are_in_the_order_of_their_times_and_keep_their_lines(tmp_path: Path) -> None:
    read = read_trace(written(tmp_path, "", *GOOD, ""))
    assert [number for number, _ in read.requests] == [3, 4, 2]
    assert read.times == [0, 0.9995, 2.9995]
    # of 1,900 tokens, one block was seen before
    assert read.shared == 512 / 1900
    read.check_fit(1208)
    with pytest.raises(BadInput, match=r"trace\.jsonl, line 2: 1200 tokens and an answer of 8 do not fit a context"):
        read.check_fit(1207)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ("not json", "is not valid JSON"),
        ("[" * 5000, "is not valid JSON"),
        ("[]", "dictionary"),
        ("{}", "timestamp: Field required"),
        (line(-1, 5), "timestamp"),
        (line(1e300, 5), "timestamp"),
        (line(float("nan"), 5), "is not valid JSON"),
        (line(0, 0), "input_length"),
        (line(0, 5, answer=0), "output_length"),
        (line(0, 2**40), "input_length"),
        (line(0, 10**30), "64 bits"),
        (line(0, 600, 1), "`hash_ids` has 1 blocks, but 600 tokens are 2 of 512"),
        (line(0, 5, -1), "hash_ids.0"),
        ('{"timestamp": 0, "input_length": "5", "output_length": 5}', "input_length"),
        ('{"timestamp": 0, "input_length": true, "output_length": 5}', "input_length"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ["\\u001b[31m"]}', "hash_ids.0"),
        ("\udce4", "UTF-8"),
    ],
    ids=range(17),
)
def test_a_line_that_is_not_valid_is_refused_with_its_number(tmp_path: Path, odd: str, says: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(os.fsencode("\n".join([GOOD[0], odd, GOOD[1]])))
    with pytest.raises(BadInput) as refused:
        read_trace(file)
    assert says in refused.value.message
    assert "line 2" in refused.value.message or says == "UTF-8"
    assert len(refused.value.message) < 500
    assert refused.value.message.isprintable()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("", ""), "has no requests"),
        ((line(0, 5),) * (tracing.MOST_TRACED + 1), "has 20001 lines (limit: 20000)"),
        ((line(0, 5), line(8e6, 5)), "lasts 8000 s (limit: 7200)"),
        ((line(0, 2**25), line(0, 5)), "prompts of 33554437 tokens (limit: 33554432)"),
    ],
    ids=range(4),
)
def test_a_trace_that_is_too_long_says_which_part_can_be_replayed(
    tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read_trace(written(tmp_path, *lines))
    assert says in refused.value.message
    assert ("head -n 500" in refused.value.hint) is (len(lines[0]) > 0)


def test_a_gigabyte_is_refused_at_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    with file.open("wb") as sparse:
        sparse.truncate(2**30)
    with pytest.raises(BadInput, match=f"is too large: .*limit: {LARGEST_TRACE}"):
        read_trace(file)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, GOOD[0].encode())
    os.close(write)
    monkeypatch.setattr(os, "dup", lambda _: read)
    assert read_trace(Path("-")).name == "standard input"


@dataclass
class Served:
    """An endpoint whose tokens have three characters."""

    model: str = "m"
    said: list[str] = field(default_factory=list)

    def chat(self, text: str, *, max_tokens: int) -> TimedCompletion:
        assert max_tokens == 1
        return TimedCompletion(prompt_tokens=AROUND + -(-len(text) // CHARACTERS), completion_tokens=1)

    def metrics(self) -> Metrics:
        return Metrics("vllm", SpecCounters(), 0, 0, waiting=3)

    @asynccontextmanager
    async def async_session(self, _: int) -> AsyncIterator[None]:
        yield


def load(*lines: str, context: int = 4096) -> TraceLoad:
    parsed = [TraceLine.model_validate_json(one) for one in lines]
    endpoint: Any = Served()
    return TraceLoad(endpoint, Limits(), lambda: 7, Trace("t", tuple(enumerate(parsed, 1))), context)


def alike(one: str, other: str) -> int:
    """Characters with which both begin."""
    return next(at for at, (mine, theirs) in enumerate(zip(f"{one}a", f"{other}b", strict=False)) if mine != theirs)


def test_texts_have_the_lengths_of_the_trace_and_begin_alike_where_it_says_so() -> None:
    one = load(
        line(0, 1300, 0, 1, 2), line(1, 1024, 0, 3), line(2, 1200, 0, 1, 4), line(3, 600), line(4, 600), line(5, 1)
    )
    texts = one.texts(one.trace.requests)
    sizes = [AROUND + len(text) / CHARACTERS for text in texts]
    assert sizes == pytest.approx([1300, 1024, 1200, 600, 600, AROUND + 1 / 3], abs=3)
    shared = [alike(texts[0], text) // CHARACTERS for text in texts[1:]]
    assert shared[0] == pytest.approx(512, abs=60)
    assert shared[1] == pytest.approx(1024, abs=60)
    # the last ones have no blocks in common: at most some lines are the same by chance
    assert shared[2] < 60 > alike(*texts[3:5]) // CHARACTERS
    session, again = (text.split("\n", 1) for text in (texts[0], one.texts(one.trace.requests)[0]))
    assert session[0] != again[0]
    assert session[1] == again[1]


def test_a_request_that_just_fits_leaves_room_for_a_text_that_is_longer_than_estimated() -> None:
    (text,) = (one := load(line(0, 2000, 0, 1, 2, 3, answer=48), context=2048)).texts(one.trace.requests)
    assert 0.97 * 2048 < AROUND + len(text) / CHARACTERS + 48 < 0.98 * 2048


def test_requests_are_sent_at_their_times_and_answers_have_all_of_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[float, dict[str, Any]]] = []

    async def answered(_: None, body: bytes) -> TimedCompletion:
        sent.append((asyncio.get_running_loop().time(), json.loads(body)))
        while len(sent) < 3:
            # none waits for the answer to another
            await asyncio.sleep(0.01)
        return TimedCompletion(prompt_tokens=5)

    monkeypatch.setattr(tracing, "time_completion", answered)
    one = load(line(0, 50, answer=3), line(100, 60, answer=4), line(400, 70, answer=5)).run()
    first, second, third = (at for at, _ in sent)
    assert second - first > 0.05
    assert third - second > 0.2
    assert [body["max_tokens"] for _, body in sent] == [3, 4, 5]
    assert all(body["ignore_eos"] and body["stream"] for _, body in sent)
    assert (len(one.requests), one.waiting, one.memory) == (3, 3, 7)


def answered(drafts: int, cached: int | None, *, gap: float = 0.1) -> TurnLoad:
    """Prompts of 900 and 1,900 tokens, each answered with 50."""
    requests = tuple(TimedCompletion(0.5, 0.5 + 49 * gap, [], n, 50, cached_tokens=cached) for n in (900, 1900))
    counted = SpecCounters(drafts, 7 * drafts, 2 * drafts)
    return TurnLoad(1, requests, Metrics("vllm", SpecCounters(), 0, 0), Metrics("vllm", counted, 100, 0), 0, None)


@pytest.mark.parametrize(
    ("cached", "shared", "says"),
    [
        (700, 0.6, "the prefix cache had 50 % of the prompts, 60 % can be shared"),
        (0, 0.6, "60 % can be shared: prefix caching is off"),
        (0, 0.0, "the prefix cache had 0 % of the prompts, 0 % can be shared"),
        (None, 0.6, "the prefix cache is unknown"),
    ],
)
def test_the_verdict_says_how_much_of_what_is_shared_was_cached(cached: int | None, shared: float, says: str) -> None:
    halves = [[answered(100, cached)]]
    drafts, cache, *more = trace_verdicts(by_turn(halves, "dflash"), of_trace(halves, "dflash"), shared)
    assert drafts == "acceptance length 3.00 at 2K; only --baseline says whether drafts pay"
    assert cache.startswith(says) or cache.endswith(says)
    assert not more


def test_a_trace_has_figures_by_context_and_of_all_its_requests() -> None:
    drafted, plain = [[answered(100, 0)]], [[answered(0, 0, gap=0.05)]]
    turns, contexts = (with_baseline(make(drafted, "dflash"), make(plain, "off")) for make in (by_turn, of_trace))
    assert [(one.at, one.drafter, one.requests) for one in contexts] == [
        (1024, True, 1), (1024, False, 1), (2048, True, 1), (2048, False, 1)
    ]  # fmt: skip
    assert next(trace_verdicts(turns, contexts, 0)) == "from 1K on the drafter costs more than it gains (0.55 times)"
    done = AgentsBenchmark({**document()["measured"], "trace": "a<b"}, turns, contexts, (), None)
    ((place, (_, rows)),) = done.tables().items()
    assert (place, [row[0] for row in rows]) == ("context", ["1,024", "1,024", "2,048", "2,048", "all", "all"])
    page = done.page()
    assert "The requests of a&lt;b at their times" in page
    assert f'data-x="2048" data-y="{contexts[2].tokens_per_s!r}"' in page
    assert "<td>all</td>" in page


def test_no_request_is_answered() -> None:
    failed = TurnLoad(1, (TimedCompletion(problem="refused"),), None, None, None, None)
    said = list(trace_verdicts(by_turn([[failed]], "unknown"), of_trace([[failed]], "unknown"), 0.5))
    assert said[0].startswith("no drafts were counted")
