"""Explain the log of any engine, with or without a deployment: the cause, its evidence, and what is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_deploy import __version__
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.collect import Collector
from dflash_deploy.diagnosis.diagnose import Diagnosis, LogReader, ProcessEnd
from dflash_deploy.diagnosis.lines import Recognised, clean
from dflash_deploy.document import Count, Documented, Hidden, redacted
from dflash_deploy.intake.files import lines_of
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.serve.engines import ENGINES

# Exit codes of an engine that was stopped: none is known, it ended by itself, or by SIGINT or SIGTERM.
STOPPED = (None, 0, 130, -2, 143, -15)


@dataclass(frozen=True)
class ExplainedLog(Documented):
    """What the log of an engine says, without secrets."""

    engine: str | None
    """Name of the engine; null if neither `--engine` nor a line of the log names it."""
    release: str | None
    """Release of the engine; null if neither `--engine` nor a line of the log names it."""
    verdict: Literal["named", "likely", "unknown", "none"]
    """How sure the cause is. `none`: the log shows no failure."""
    failure: Diagnosis | None
    """The cause; null if it is unknown, or without a failure."""
    lines: tuple[str, ...]
    """The decisive lines of the log; empty if the log shows no failure."""
    circumstances: tuple[str, ...]
    """What is true besides the cause, in words. The text may change."""
    costs: tuple[Diagnosis, ...]
    """Known problems that cost speed, memory or a feature without ending the engine."""
    not_known: tuple[str, ...]
    """What the log does not say and would help, in words. The text may change."""
    lines_read: Count
    """Lines that were read."""
    quoted: Hidden[tuple[str, ...]]
    """The lines for an issue, also if the log shows no failure."""

    @property
    def engine_title(self) -> str:
        """The engine and its release, in words."""
        return f"{ENGINES[self.engine].title} {self.release or ''}".strip() if self.engine else ""

    def document(self) -> dict[str, Any]:
        """The same without secrets, which the fields still have."""
        found: dict[str, Any] = redacted(super().document(), redact_by_shape)
        return found

    def issue(self) -> str:
        """A text for an issue, in Markdown and without secrets."""
        cause = f"{self.failure.cause} (`{self.failure.id}`, {self.verdict})" if self.failure else "unknown"
        facts = (
            f"- engine: {self.engine_title or 'not recognised'}",
            f"- cause: {cause}",
            *(f"- {text}" for text in self.circumstances),
            f"- read by: dflash-deploy {__version__}, {self.lines_read} lines",
        )
        # longer than any in the log, which would end the block
        ticks = max((len(run) for line in self.quoted for run in re.findall("`+", line)), default=0)
        fence = "`" * max(3, ticks + 1)
        return redact_by_shape("\n".join((*facts, "", f"{fence}text", *self.quoted, fence)))


def explain_log(path: Path, *, exit_code: int | None = None, engine: str | None = None) -> ExplainedLog:
    """Read the log of an engine from a file, a pipe, or standard input (`-`), in bounded memory, and explain it.

    `engine` is the name of the engine that wrote it, or of its release; else the log names it. Raises UnknownEngine;
    FileMissing, FileInvalid, FileDenied or FileRefused if the log cannot be read.
    """
    catalog = load_catalog()
    told = None if engine is None or engine in ENGINES else catalog.engine(engine)
    recognised = Recognised(catalog.log_signs, told.engine if told else engine or "")
    collected = Collector().read(map(clean, recognised.watch(lines_of(path))))
    release = recognised.release or (told.version if told else "")
    reader = LogReader(catalog.failures, recognised.engine, release)
    found = reader.explain(collected, ProcessEnd(exit_code))
    failed = collected.failed() or exit_code not in STOPPED or found.diagnosis
    missing = (
        ("the engine, which no line of the log names: pass --engine if you know it", not recognised.engine),
        ("the engine's release: rows for other releases may match", bool(recognised.engine) and not release),
        ("how the process ended: pass --exit-code if you know it", exit_code is None),
    )
    return ExplainedLog(
        engine=recognised.engine or None,
        release=release or None,
        verdict=found.confidence if failed else "none",
        failure=found.diagnosis,
        lines=found.lines if failed else (),
        circumstances=found.circumstances,
        costs=reader.costs_of(collected),
        not_known=tuple(text for text, is_missing in missing if is_missing),
        lines_read=recognised.lines,
        quoted=found.lines,
    )
