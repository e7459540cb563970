"""The picture of the report is drawn from the figures of the run that is kept beside it."""

import json

from tests.support.measured import document
from tests.support.pictures.report import FIGURES, PICTURE, picture, plots
from tests.support.schemas import data_problems


def test_the_picture_is_that_of_the_figures() -> None:
    data = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert data_problems("bench", data) == []
    assert PICTURE.read_text(encoding="utf-8") == picture(data), "python -m tests.support.pictures.report"


def test_every_plot_over_concurrency_and_position_is_in_it() -> None:
    titles = [plot.title for plot in plots(document())]
    assert titles == ["Speed-up by speculative decoding", "Drafts accepted up to each position", *["Throughput"] * 2]
