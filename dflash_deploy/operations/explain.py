"""Explain the log of any engine, with or without a deployment: the cause, its evidence, and what is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.diagnosis.collect import Collector
from dflash_deploy.diagnosis.diagnose import Diagnosis, Explanation, LogReader, ProcessEnd
from dflash_deploy.diagnosis.lines import Recognised, clean
from dflash_deploy.document import as_document, redacted
from dflash_deploy.intake.files import lines_of
from dflash_deploy.redact import redact_by_shape
from dflash_deploy.serve.engines import ENGINES

# Exit codes of an engine that was stopped: none is known, it ended by itself, or by SIGINT or SIGTERM.
STOPPED = (None, 0, 130, -2, 143, -15)


@dataclass(frozen=True)
class ExplainedLog:
    """What a log says, secrets included: what shows it redacts it.

    `engine` and `release` are empty if it does not name them. `failed`: it has errors, or the exit code is one
    of a failure.
    """

    engine: str
    release: str
    lines: int
    exit_code: int | None
    failed: bool
    explanation: Explanation
    costs: tuple[Diagnosis, ...]

    @property
    def engine_title(self) -> str:
        """The engine and its release, in words."""
        return f"{ENGINES[self.engine].title} {self.release}".strip() if self.engine else ""

    @property
    def verdict(self) -> str:
        """`named`, `likely`, `unknown`, or `none` if the log shows no failure."""
        return self.explanation.confidence if self.failed or self.explanation.diagnosis else "none"

    @property
    def not_known(self) -> tuple[str, ...]:
        """What the log does not say, and would help."""
        missing = (
            ("the engine, which no line of the log names: pass --engine if you know it", not self.engine),
            ("the engine's release: rows for other releases may match", bool(self.engine) and not self.release),
            ("how the process ended: pass --exit-code if you know it", self.exit_code is None),
        )
        return tuple(text for text, is_missing in missing if is_missing)

    def document(self) -> dict[str, object]:
        """The `data` of `explain --json`, without secrets."""
        data: dict[str, object] = {
            "engine": self.engine or None,
            "release": self.release or None,
            "verdict": self.verdict,
            "failure": self.explanation.diagnosis,
            "lines": list(self.explanation.lines if self.verdict != "none" else ()),
            "circumstances": list(self.explanation.circumstances),
            "costs": self.costs,
            "not_known": list(self.not_known),
            "lines_read": self.lines,
        }
        return {name: redacted(as_document(value), redact_by_shape) for name, value in data.items()}

    def issue(self) -> str:
        """A text for an issue, in Markdown and without secrets."""
        found = self.explanation.diagnosis
        cause = f"{found.cause} (`{found.id}`, {self.verdict})" if found else "unknown"
        facts = (
            f"- engine: {self.engine_title or 'not recognised'}",
            f"- cause: {cause}",
            *(f"- {text}" for text in self.explanation.circumstances),
            f"- read by: dflash-deploy {__version__}, {self.lines} lines",
        )
        # longer than any in the log, which would end the block
        ticks = max((len(run) for line in self.explanation.lines for run in re.findall("`+", line)), default=0)
        fence = "`" * max(3, ticks + 1)
        return redact_by_shape("\n".join((*facts, "", f"{fence}text", *self.explanation.lines, fence)))


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
    return ExplainedLog(
        engine=recognised.engine,
        release=release,
        lines=recognised.lines,
        exit_code=exit_code,
        failed=collected.failed() or exit_code not in STOPPED,
        explanation=reader.explain(collected, ProcessEnd(exit_code)),
        costs=reader.costs_of(collected),
    )
