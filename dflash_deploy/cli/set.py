"""`set` and `render`: settings of `.env`, and the files that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_deploy.cli.command import command, option_of
from dflash_deploy.cli.shown import Report, Shown, Styled
from dflash_deploy.errors import BadInput
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.operations.set import Changed, SettingRow, SettingRows


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE...", help="Settings; NAME= restores the default. With --list: a word to find."),
]
List = Annotated[bool, typer.Option("--list", help="Show settings with value, default, unit and meaning.")]

MIRROR = "HF_ENDPOINT"  # the variable that names another host than the Hub, for `pull`


@command(changes=True, examples=(f"set {Settings.max_num_seqs}=8 {Settings.max_model_len}=32768", "set --list context"))
def set(  # noqa: A001 - the name of the command
    words: Words = None, listed: List = False, *, directory: Path
) -> Report:
    """Change settings of .env, or list what can be set. `up` applies them.

    Values are checked as `up` checks them. Comments and other lines stay, and .env.last keeps the file before.
    """
    from dflash_deploy.operations.set import assignments, change, settings

    if listed:
        found = settings(directory, " ".join(words or ()))
        return Report(found, tuple(_rows(found)))
    if not words:
        raise BadInput(
            "no setting is named",
            hint=f"such as `dflash-deploy set {Settings.max_num_seqs}=8`; all: `dflash-deploy set --list`",
        )
    done = change(directory, assignments(words))
    if not done.changed:
        return Report(done, ("unchanged: .env has these values",))
    what = "the engine restarts" if done.restarts == "engine" else "the door restarts, and the engine keeps answering"
    return Report(
        done,
        (
            *(f"{row.name}: {row.old or '(default)'} -> {row.new or _default(row)}" for row in done.changed),
            *(
                f"token    {Settings.hf_token} goes to {row.new} too"
                for row in done.changed
                if row.name == MIRROR and row.new
            ),
            f"next     dflash-deploy up{option_of(directory)}   apply it: {what}",
        ),
        done.findings,
    )


def _default(row: Changed) -> str:
    return f"{row.default} (default)" if row.default else "(default)"


def _rows(found: SettingRows) -> Iterator[Shown]:
    """Each setting with its value, kind and default, and below it the meaning, which several settings may share."""
    for section, inside in groupby(found.settings, key=lambda row: row.section):
        yield Styled((section, "bold"))
        for meaning, sharing in groupby(inside, key=lambda row: row.meaning):
            yield from map(_row, sharing)
            yield f"    {meaning}"
        yield ""
    yield "dflash-deploy set NAME=VALUE changes one, set NAME= restores its default"


def _row(row: SettingRow) -> str:
    if row.secret:
        return f"  {row.name}  secret, which `set` does not show"
    default = f"default {row.default}" if row.default else "default: the engine's"
    return f"  {row.name}{f'={row.value}' if row.value else ''}  {row.kind}; {default}"


@command(changes=True, examples=("render", "render --dir /srv/vision"))
def render(*, directory: Path) -> Report:
    """Write compose.yaml and the image's build context from .env. `up` does the same by itself."""
    from dflash_deploy.operations.plan import render as run_render

    done = run_render(directory)
    said = "wrote" if done.changed else "unchanged:"
    return Report(done, (f"{said} {done.file}",), done.plan.findings)
