"""Write every generated page of the reference."""

from tests.support.reference import FOLDER, PAGES

for name, page in PAGES.items():
    (FOLDER / name).write_text(page(), encoding="utf-8")
