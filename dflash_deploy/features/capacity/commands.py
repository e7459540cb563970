"""`capacity`: how many replicas a load needs, and where the figures come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, note_if_new
from dflash_deploy.cli.options import HERE, Directory, Engine, Goal, Json, Length, Model, NoDrafter, Profile, Streams
from dflash_deploy.cli.shown import Grid, Report, Shown

if TYPE_CHECKING:
    from dflash_deploy.features.capacity.load_text import UserLoad
    from dflash_deploy.features.capacity.operations import Capacity
    from dflash_deploy.features.capacity.simulation import Sized


Load = Annotated[
    str, typer.Argument(help="The load: users=200,think=30s,in=1500,out=500,p95_ttft=2s.", show_default=False)
]
Figures = Annotated[Path | None, typer.Option(help="A file of `bench --save`; else the last run here.", dir_okay=False)]


@command(
    examples=(
        "capacity users=200,think=30s,in=1500,out=500,p95_ttft=2s",
        "capacity users=9,in=500,out=200,p95_answer=20s --profile h100",
    )
)
def capacity(
    load: Load,
    directory: Directory = HERE,
    profile: Profile = None,
    model: Model = None,
    engine: Engine = None,
    goal: Goal = None,
    max_model_len: Length = None,
    concurrency: Streams = None,
    no_drafter: NoDrafter = False,
    figures: Figures = None,
    as_json: Json = False,
) -> Report:
    """Show how many replicas a load needs, with and without drafts. Writes nothing."""
    from dflash_deploy.features.capacity.operations import capacity as sized
    from dflash_deploy.plan.result import Choice

    choice = Choice(
        profile=profile,
        model=model,
        engine=engine,
        goal=goal,
        max_model_len=max_model_len,
        concurrency=concurrency,
        drafter=not no_drafter,
    )
    needed = sized(directory, load, choice, figures=figures)
    note_if_new(directory)
    return Report(needed.document(), tuple(load_lines(needed)), needed.plan.findings)


def load_lines(found: Capacity) -> Iterator[Shown]:
    """The load, the replicas with and without drafts, where drafts stop paying, and the limits."""
    made = found.plan
    yield f"profile  {made.profile.name}: {made.profile.title}"
    yield f"model    {made.pair.title}"
    yield f"engine   {made.engine_title}, {made.runtime}"
    yield f"load     {_of(found.load)}"
    yield f"goal     {_goal(found.load)}"
    yield f"speed    {found.source}"
    yield ""
    yield _table(found)
    yield ""
    if any(sized.replicas is None for sized in found.sides.values()):
        yield "         no number of replicas meets the goal: the figures are those of a single user"
    yield from _drafts(found)
    yield "         simulated: users are divided evenly and stay with their replica; times in seconds"
    yield from (f"note     {note}" for note in found.notes)


def _of(load: UserLoad) -> str:
    sizes = "all equal" if not load.spread else f"spread {load.spread:g}"
    return (
        f"{load.users} users, {load.think_s:g} s between an answer and the next request; "
        f"{load.prompt_tokens} tokens in, {load.answer_tokens} out on average ({sizes})"
    )


def _goal(load: UserLoad) -> str:
    goals = (("TTFT", load.p95_ttft_s), ("the whole answer", load.p95_answer_s))
    return "; ".join(f"p95 of {name} at most {limit:g} s" for name, limit in goals if limit is not None)


def _table(found: Capacity) -> Grid:
    drawn = Grid(
        "", "replicas", "users on one", "at most", "TTFT p50", "p95", "answer p50", "p95", "in flight", "tokens/s"
    )  # fmt: skip
    for name, sized in found.sides.items():
        one = sized.one
        times = (one.ttft_p50_s, one.ttft_p95_s, one.answer_p50_s, one.answer_p95_s)
        drawn.add_row(
            name,
            str(sized.replicas or "-"),
            str(one.users),
            _most(sized),
            *(f"{seconds:.2f}" for seconds in times),
            f"{one.sequences:.1f}",
            f"{sized.tokens_per_s:.0f}",
        )
    return drawn


def _most(sized: Sized) -> str:
    """The most users of one replica within the goal."""
    return str(sized.users_of_one) if sized.replicas is not None else "0"


def _drafts(found: Capacity) -> Iterator[str]:
    if len(found.sides) < 2:
        return
    if found.drafts_pay_below is None:
        yield "drafts   make each answer faster up to all sequences at the same time"
    elif found.drafts_pay_below == 1:
        yield "drafts   do not pay here, not even for one sequence at a time"
    else:
        yield f"drafts   stop paying at {found.drafts_pay_below} sequences at the same time on one replica"
