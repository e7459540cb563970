"""`python -m tools.reference`: write the generated pages of the reference that are checked in."""

from tools.reference import FOLDER
from tools.reference.pages import CHECKED_IN

for name, page in CHECKED_IN.items():
    (FOLDER / name).write_text(page(), encoding="utf-8")
