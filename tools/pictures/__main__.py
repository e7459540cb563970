"""`python -m tools.pictures [NAME ...]`: runs the commands of pictures and writes docs/pictures/."""

import sys
import tempfile
from pathlib import Path

from tools.pictures.album import ALBUM, FOLDER, taken
from tools.pictures.svg import picture


def main(names: list[str]) -> None:
    """Take the named pictures, or all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for shot in ALBUM:
        if not names or shot.name in names:
            with tempfile.TemporaryDirectory() as directory:
                lines = taken(shot, Path(directory))
            drawn = picture(lines, title=shot.title, columns=shot.columns, moving=shot.moving)
            (FOLDER / f"{shot.name}.svg").write_text(drawn, encoding="utf-8")
            print(f"{shot.name}: {len(lines)} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
