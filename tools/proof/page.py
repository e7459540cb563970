"""The results of a proof as one JSON document, one HTML page without external files, and one file to publish."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

from dflash_deploy.catalog.load import Catalog
from dflash_deploy.document import redacted
from dflash_deploy.errors import BadInput
from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.intake.parse import Invalid, parse_object
from dflash_deploy.redact import Redact, redact_by_shape
from tools.proof.decide import Command, Outcome, steps
from tools.proof.share import SharedMachine, SharedResult, SharedStep, share, shared_rows

LARGEST = 16 * MIB  # bytes of the largest JSON document of a proof
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .3rem .6rem; vertical-align: top;
border-bottom: 1px solid #8886 } details { margin: .2rem 0 } code { font-size: 12px; overflow-wrap: anywhere }
.passed { color: #1a7f37 } .failed, .timed-out { color: #cf222e } .rehearsed { color: #0969da } .skipped { color: #888 }
@media (prefers-color-scheme: dark) { .passed { color: #3fb950 } .failed, .timed-out { color: #f85149 }
.rehearsed { color: #58a6ff } }
@media (max-width: 40rem) { td, th { padding: .3rem .2rem } }
"""


def document(machine: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The whole result as JSON, without secrets."""
    listed = [
        {
            "name": one.step.name,
            "proves": one.step.proves,
            "state": one.state,
            "reason": one.reason,
            "seconds": one.seconds,
            "limit": one.step.limit,
            "commands": [asdict(command) for command in one.commands],
            "engine_log_sha256": one.log,
            "figures": dict(one.figures),
            "rows": list(one.rows),
            "named": dict(one.named),
            "settings": dict(one.settings),
        }
        for one in outcomes
    ]
    whole = {"schema": 1, "command": "proof", "data": {"machine": machine, "steps": listed}}
    return redact_by_shape(json.dumps(whole, indent=1)) + "\n"


def ended(file: Path) -> list[Outcome]:
    """The outcomes in a document of an earlier run, of the steps that there still are; none without a file.

    Raises BadInput if the file is something else.
    """
    try:
        return list(_ended(parse_object(read_text(file, limit=LARGEST)))) if file.exists() else []
    except (Invalid, LookupError, TypeError) as problem:
        raise BadInput(f"{file} is not a proof: {problem}", hint="remove it, or leave out --resume") from None


def _ended(document: Mapping[str, Any]) -> Iterator[Outcome]:
    known = {step.name: step for step in steps()}
    for one in document["data"]["steps"]:
        if one["name"] not in known:
            continue
        yield Outcome(
            known[one["name"]],
            **{name: one[name] for name in ("state", "seconds", "reason", "figures", "rows", "named", "settings")},
            commands=tuple(Command(**{**command, "words": tuple(command["words"])}) for command in one["commands"]),
            log=one["engine_log_sha256"],
        )


def without_names(outcome: Outcome, clean: Redact) -> Outcome:
    """The outcome without what names a machine or a person."""
    commands = tuple(replace(one, words=tuple(map(clean, one.words))) for one in outcome.commands)
    return replace(outcome, reason=clean(outcome.reason), commands=commands, rows=redacted(outcome.rows, clean))


def shared(
    machine: SharedMachine,
    runtime: str,
    catalog: Catalog,
    outcomes: Sequence[Outcome],
    versions: Mapping[str, str] = {},
) -> SharedResult:
    """What can be published: states, seconds, figures and digests of the steps."""
    public = [
        SharedStep(
            name=one.step.name,
            state=one.state,
            seconds=one.seconds,
            log=one.log,
            model=name if (name := one.named.get("model", "")) in catalog.pairs else "",
            figures=dict(one.figures),
            rows=shared_rows(one.rows),
        )
        for one in outcomes
    ]
    ran = next((one for one in outcomes if one.named), None)
    known = ran.named if ran else {}
    return share(
        "proof",
        catalog,
        machine,
        named={"runtime": runtime, **{kind: known.get(kind, "") for kind in ("profile", "engine")}},
        values=ran.settings if ran else {},
        image=known.get("image", ""),
        steps=public,
        versions=versions,
    )


def html(machine: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The page: the machine, a row for each step, its commands and figures on demand."""
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in machine.items())
    rows = "".join(map(_row, outcomes))
    counted = {state: sum(one.state == state for one in outcomes) for state in dict.fromkeys(o.state for o in outcomes)}
    summary = ", ".join(f'<span class="{state}">{count} {state}</span>' for state, count in counted.items())
    return redact_by_shape(
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Proof of dflash-deploy</title><style>{_STYLE}</style><h1>Proof of dflash-deploy</h1><p>{summary}</p>"
        f"<table>{facts}</table><h2>Steps</h2><table><tr><th>step</th><th>result</th><th>seconds</th><th>details</th></tr>"
        f"{rows}</table></html>\n"
    )


def _row(one: Outcome) -> str:
    commands = "".join(
        f"<li><code>{escape(' '.join(command.words))}</code><br>"
        f"exit code {'none (limit)' if command.code is None else command.code}, {command.seconds:g} s"
        f"{f', output sha256 {command.log[:16]}…' if command.log else ''}</li>"
        for command in one.commands
    )
    figures = "".join(f"<li>{escape(name)}: {value:g}</li>" for name, value in one.figures.items())
    details = escape(one.reason) + _measured(one.rows) + (f"<ul>{figures}</ul>" if figures else "")
    if commands:
        details += f"<details><summary>{len(one.commands)} commands</summary><ol>{commands}</ol></details>"
    return (
        f"<tr><td><b>{escape(one.step.name)}</b><br>{escape(one.step.proves)}</td>"
        f'<td class="{one.state}">{one.state}</td><td>{one.seconds:g} of {one.step.limit}</td><td>{details}</td></tr>'
    )


def _measured(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = "".join(f"<li>{escape(_words(row))}</li>" for row in rows)
    return f"<ul>{cells}</ul>" if cells else ""


def _words(row: Mapping[str, Any]) -> str:
    faster, length = row["speedup"], row["acceptance_length"]
    words = (
        f"{row['workload']}, concurrency {row['concurrency']}, {'with' if row['drafter'] else 'without'} the drafter",
        f"{row['tokens_per_s']:.1f} tokens/s",
        f"{faster:.2f} times" if faster else "",
        f"acceptance length {length:.2f}" if length else "",
    )
    return ", ".join(filter(None, words))
