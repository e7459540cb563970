"""Pages of the reference that repeat the program: `tools/reference/pages.py` says which are checked in."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
