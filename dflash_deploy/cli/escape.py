"""Makes all that a console of Rich prints safe to show."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from dflash_deploy.cli.visible import visible


class Escape(RenderHook):
    """Escapes control characters in everything that a console prints. Its own styles and movements stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return renderables that render the same segments with escaped text."""
        return [_Escaped(one) for one in renderables]


class _Escaped:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rendered: Iterable[Segment] = console.render(self._inner, options)
        for segment in rendered:
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
