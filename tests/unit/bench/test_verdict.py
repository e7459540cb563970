"""`bench` ends with whether drafts pay, and says why its figures may be wrong."""

from dataclasses import replace

from dflash_deploy.bench.figures import Row
from dflash_deploy.bench.verdict import cautions, verdicts

ROW = Row(
    workload="code",
    concurrency=1,
    speculation="dflash",
    draft_tokens=7,
    tokens_per_s=100.0,
    rounds=(98.0, 100.0, 102.0),
    speedup=2.4,
    requests=30,
    failed=0,
    problem="",
    duration_s=60.0,
    requests_per_s=0.5,
    input_tokens=100,
    output_tokens=1000,
    ttft_ms=None,
    tpot_ms=None,
    itl_ms=None,
    acceptance_length=4.0,
    acceptance_by_position=(),
    counted=None,
)
PLAIN = replace(ROW, speculation="off", speedup=None)


def test_each_workload_has_a_verdict_by_concurrency() -> None:
    rows = [PLAIN, ROW, *(replace(ROW, concurrency=n, speedup=by) for n, by in ((2, 1.5), (4, 1.02), (8, 0.77)))]
    assert list(verdicts([*rows, replace(ROW, workload="chat")])) == [
        "verdict    code: drafts pay at concurrency 1 (2.40 times), 2 (1.50 times); change little at concurrency 4 "
        "(1.02 times); cost at concurrency 8 (0.77 times)",
        "verdict    chat: drafts pay at concurrency 1 (2.40 times)",
        "hint: `dflash-deploy tune` finds the draft tokens for this load",
    ]


def test_without_a_comparison_the_verdict_is_unknown() -> None:
    assert list(verdicts([replace(ROW, speedup=None)])) == [
        "verdict    unknown: only --baseline says whether drafts pay"
    ]


def test_sound_figures_need_no_caution() -> None:
    assert list(cautions([PLAIN, ROW], load=0.9, cores=2)) == []


def test_what_spoils_the_figures_is_named() -> None:
    unsteady = replace(ROW, rounds=(50.0, 100.0, 101.0), duration_s=1.0)
    assert list(cautions([ROW, unsteady], load=7.9, cores=2)) == [
        "busy       this machine had a load average of 7.9 on 2 cores before the run",
        "unsteady   repeats differ: code at concurrency 1 by 51 %",
        "short      1 of 2 measurements took less than 5 s (--requests N)",
    ]
    assert list(cautions([replace(ROW, rounds=(0.0,))], load=0, cores=2)) == [
        "unsteady   one repeat: small differences may be chance (--repeats 5)"
    ]
