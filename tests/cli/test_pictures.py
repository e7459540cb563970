"""The pictures of the documents show what the commands print today; those of an engine are compared in its tier."""

from pathlib import Path

import pytest

from tools.pictures.album import ALBUM, FOLDER, Shot, outline, taken, texts


@pytest.mark.parametrize("shot", [shot for shot in ALBUM if not shot.engine], ids=lambda shot: shot.name)
def test_a_picture_is_what_the_command_prints(shot: Shot, tmp_path: Path) -> None:
    shown = texts((FOLDER / f"{shot.name}.svg").read_text(encoding="utf-8"))
    printed = [" ".join(run.text for run in line.runs) for line in taken(shot, tmp_path) if line.runs]
    assert outline(shown) == outline(printed), "make pictures"
