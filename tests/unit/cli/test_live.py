"""What a watched engine looks like on a terminal: curves and the view."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dflash_deploy.cli.display import BARS, View, sparkline
from dflash_deploy.startup.watch import Window
from tests.cli.test_terminal import COLOUR

SECRET = "key-of-the-test-0123456789"


@pytest.mark.parametrize(
    ("values", "most", "drawn"),
    [
        ([], None, ""),
        ([0.0, 0.0], None, "▁▁"),
        ([0, 4, 8], None, "▁▅█"),
        ([1.0, None, 2.0], None, "▅ █"),
        ([1.0, 0.5], 1.0, "█▅"),
    ],
)
def test_a_curve_is_a_bar_for_each_value(values: list[float | None], most: float | None, drawn: str) -> None:
    assert sparkline(values, most) == drawn


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_a_larger_value_has_no_lower_bar(values: list[float]) -> None:
    heights = [BARS.index(bar) for bar in sparkline(values)]
    ordered = sorted(zip(values, heights, strict=True))
    assert [height for _, height in ordered] == sorted(heights)


def test_the_figures_of_now_and_the_remarks_of_before_are_on_the_screen() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with View(f"tiny at http://me:{SECRET}@box/v1", screen, lambda text: text.replace(SECRET, "***")) as view:
        view.show(Window("running", 1, 0, 100.0, 7.0, 0.25, (0.9, 0.5)))
        view.show(Window("running", 3, 2, 50.0, None, 0.5, remark="HANGS: 3 running requests"))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    for said in ("50.0", "█▅", "50%", "90% 50%", "HANGS: 3 running requests", "***"):
        assert said in COLOUR.sub("", shown)
    assert SECRET not in shown


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_newest_look_and_the_whole_remark_are_never_cut_off(width: int) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, height=30)
    remark = "RESTARTED, 12 times since this watch began: read why with `dflash-deploy logs`"
    with View("a-model-with-a-long-name at http://models.example.com:8000/v1", screen, str) as view:
        for _ in range(150):
            view.show(Window("running", 1, 0, 1.0))
        view.show(Window("not responding", 1, 0, 100.0, remark=remark))
    shown = COLOUR.sub("", screen.file.getvalue())  # type: ignore[attr-defined]
    last = shown[shown.rindex("state") :]
    assert max(map(len, last.split("\n"))) <= width
    assert "▁▁▁█" in last
    assert remark in " ".join(last.split())
