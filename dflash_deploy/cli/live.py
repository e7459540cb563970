"""What `status --watch` shows on a terminal: figures as they are now, and their course."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dflash_deploy.cli.visible import visible
from dflash_deploy.redact import Redact
from dflash_deploy.startup.watch import Window

BARS = "▁▂▃▄▅▆▇█"
LABEL, FIGURE = 11, 15
"""Columns of a row's name and of its figure; the curve has the rest."""

CURVES: tuple[tuple[str, str, str, float | None], ...] = (
    ("tokens/s", "tokens_per_second", ".1f", None),
    ("length", "acceptance_length", ".2f", None),
    ("running", "running", "d", None),
    ("waiting", "waiting", "d", None),
    ("KV cache", "cache", ".0%", 1.0),
)
"""Name, field of a look, form of its figure, and the value of a whole bar where it is not the largest one seen."""

MOST_LOOKS = 400
REMARKS = 5


class View:
    """A screen that is drawn again with each window. Remarks stay, the newest last."""

    def __init__(self, title: str, screen: Console, redact: Redact) -> None:
        self._title = title
        self._redact = redact
        self._screen = screen
        self._lines: deque[Window] = deque(maxlen=MOST_LOOKS)
        self._remarks: deque[str] = deque(maxlen=REMARKS)
        self._live = Live(console=screen, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, line: Window) -> None:
        """Draw it again with one more window."""
        self._lines.append(line)
        if line.remark:
            self._remarks.append(f"{datetime.now():%H:%M:%S}  {line.remark}")
        self._live.update(self._drawn(line), refresh=True)

    def _drawn(self, now: Window) -> Group:
        # a terminal may have become another size since
        room = max(self._screen.width - LABEL - FIGURE - 2, 8)
        rows = [f"{'state':{LABEL}} {now.state:>{FIGURE}}"]
        for name, field, form, most in CURVES:
            values = [getattr(line, field) for line in self._lines][-room:]
            figure = "-" if values[-1] is None else format(values[-1], form)
            rows.append(f"{name:{LABEL}} {figure:>{FIGURE}} {sparkline(values, most)}")
        latest = next((line.by_position for line in reversed(self._lines) if line.by_position), ())
        if latest:
            said = " ".join(f"{share:.0%}" for share in latest)
            rows.append(f"{'by position':{LABEL}} {sparkline(latest, most=1.0):>{FIGURE}} {said}")
        title = Text(visible(self._redact(self._title)), "bold", no_wrap=True, overflow="ellipsis")
        curves = Text("\n".join(rows), "cyan", no_wrap=True, overflow="crop")
        return Group(title, curves, *(Text(visible(self._redact(remark)), "yellow") for remark in self._remarks))


def sparkline(values: Sequence[float | None], most: float | None = None) -> str:
    """A bar for each value from zero to `most`, else to the largest of them; a blank where there is none."""
    top = most or max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _bar(value / top if top else 0.0) for value in values)


def _bar(share: float) -> str:
    return BARS[min(int(share * len(BARS)), len(BARS) - 1)]
