"""An answer as HTML, and figures of `bench` as a chart."""

from __future__ import annotations

import pytest

from dflash_deploy.client.talk import TalkChunk
from dflash_deploy.features.page.conversation import Turn
from dflash_deploy.features.page.facts import bars_of
from dflash_deploy.intake.documents import BenchConditions, BenchRow, BenchRun


def turn(*texts: str) -> Turn:
    return Turn("a question", chunks=[TalkChunk(text, thinking=False, step=step) for step, text in enumerate(texts)])


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(
    "written",
    [
        "<img src=x onerror=alert(1)>",
        "<script>alert(1)</script>",
        "a <b onclick=alert(1)>b</b>",
        "[a](javascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "![a](http://example.com/a.png)",
        "```<img src=x>\n<script>\n```",
        "<a:b onerror=x>",
    ],
)
def test_what_a_model_writes_is_no_html(written: str, steps: bool) -> None:
    shown = turn(written).html(steps=steps)
    for tag in ("<img", "<script", "<b ", "<a:b", 'href="javascript', 'href="data'):
        assert tag not in shown


def test_markdown_is_drawn() -> None:
    shown = turn("# A\n\n**b** `c`\n\n| d | e |\n|---|---|\n| 1 | 2 |\n").html(steps=False)
    for tag in ("<h1>A</h1>", "<strong>b</strong>", "<code>c</code>", "<td>2</td>"):
        assert tag in shown


def test_chunks_of_one_step_have_one_shade() -> None:
    chunks = [TalkChunk(text, thinking=False, step=step) for text, step in (("a", 0), ("b", 1), ("<", 1), ("d", 2))]
    shown = Turn("a question", chunks=chunks).html(steps=True)
    assert shown.count("<span") == 3
    assert '<span class="step1">b&lt;</span><span class="step0">d</span>' in shown


def test_thinking_is_apart_and_closed_once_the_answer_begins() -> None:
    thinks = Turn("a question", chunks=[TalkChunk("so <b>", thinking=True, step=0)])
    assert "<details>" not in thinks.html(steps=False)
    thinks.chunks.append(TalkChunk("yes", thinking=False, step=1))
    assert "<details><summary>Thinking</summary>so &lt;b&gt;</details>" in thinks.html(steps=False)
    assert thinks.answer == "yes"


def row(workload: str, concurrency: int, drafter: bool | None, tokens: int) -> BenchRow:
    return BenchRow(
        workload=workload,
        concurrency=concurrency,
        drafter=drafter,
        mtp=False,
        requests=1,
        duration_s=2.0,
        input_tokens=1,
        output_tokens=tokens,
        ttft_ms=None,
        tpot_ms=None,
        acceptance_length=None,
    )


def test_the_chart_has_a_bar_for_each_side_of_each_row() -> None:
    rows = [row("code", 1, True, 100), row("code", 1, False, 40), row("chat", 1, True, 80)]
    bars = bars_of(BenchRun(measured=BenchConditions(at="today", settings={}), rows=rows))
    series = bars.chart["series"]
    assert isinstance(series, list)
    assert {one["name"]: one["data"] for one in series} == {
        "with drafts": [50.0, 40.0],
        "without drafts": [20.0, None],
    }
    assert bars.at == "today"
