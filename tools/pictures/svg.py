"""A recorded terminal as one SVG: light and dark, readable without its fonts, moving only for readers who allow it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

from tools.pictures.terminal import Line, Run

SIZE, CELL, ROW, MARGIN = 14, 8.4, 20, 20  # of the font, a column, a line and the edge, in pixels
LONGEST_PAUSE = 0.8  # seconds that a moving picture waits for its next line, which may have taken minutes

LIGHT = {
    "default": "#1f2328", "ground": "#ffffff", "edge": "#d0d7de", "black": "#57606a", "red": "#cf222e",
    "green": "#116329", "brown": "#7d4e00", "blue": "#0550ae", "magenta": "#8250df", "cyan": "#1b7c83",
    "white": "#57606a", "prompt": "#57606a",
}  # fmt: skip
# Colours by the terminal's names for them; each has a contrast of at least 4.5 with its ground (WCAG 2.2, 1.4.3).
DARK = {
    "default": "#e6edf3", "ground": "#0d1117", "edge": "#30363d", "black": "#8b949e", "red": "#ff7b72",
    "green": "#3fb950", "brown": "#d29922", "blue": "#58a6ff", "magenta": "#bc8cff", "cyan": "#39c5cf",
    "white": "#b1bac4", "prompt": "#8b949e",
}  # fmt: skip


def picture(lines: Sequence[Line], *, title: str, columns: int, moving: bool = False) -> str:
    """The SVG document. `title` is what a screen reader says of it."""
    width, height = columns * CELL + 2 * MARGIN, len(lines) * ROW + 2 * MARGIN
    delays = _delays(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_style(moving)}</style>",
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" class="ground"/>',
    ]
    for number, line in enumerate(lines):
        if line.runs:
            delay = f' style="animation-delay:{delays[line.seconds]:.2f}s"' if moving else ""
            parts.append(f'<g class="line"{delay}>{"".join(_texts(line, MARGIN + (number + 0.75) * ROW))}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _delays(lines: Sequence[Line]) -> dict[float, float]:
    """When a moving picture shows a line, by the second in which it was printed."""
    moments = sorted({line.seconds for line in lines})
    delays, at = {}, 0.0
    for before, moment in pairwise([0.0, *moments]):
        at += min(moment - before, LONGEST_PAUSE)
        delays[moment] = at
    return delays


def _style(moving: bool) -> str:
    """Colours for both schemes, and the motion."""
    font = f"font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre"
    dark = "@media (prefers-color-scheme:dark){" + _colours(DARK) + "}"
    move = (
        "@keyframes appear{from{opacity:0}to{opacity:1}}.line{animation:appear .2s both}"
        "@media (prefers-reduced-motion:reduce){.line{animation:none}}"
        if moving
        else ""
    )
    return f"text{{{font}}}.bold{{font-weight:600}}{_colours(LIGHT)}{dark}{move}"


def _colours(colours: dict[str, str]) -> str:
    rules = [f".{name}{{fill:{value}}}" for name, value in colours.items() if name not in {"ground", "edge"}]
    return f".ground{{fill:{colours['ground']};stroke:{colours['edge']}}}" + "".join(rules)


def _texts(line: Line, y: float) -> Iterator[str]:
    for run in line.runs:
        weight = " bold" if run.bold else ""
        # its length keeps the columns in any font
        place = f'x="{MARGIN + run.column * CELL:g}" y="{y:g}" textLength="{len(run.text) * CELL:g}"'
        yield f'<text class="{_class(run)}{weight}" {place}>{escape(run.text)}</text>'


def _class(run: Run) -> str:
    """The class of its colour; bright ones are as the others."""
    name = run.colour.removeprefix("bright")
    return name if name in LIGHT else "default"
