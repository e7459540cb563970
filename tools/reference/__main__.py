"""`python -m tools.reference`: write every generated page of the reference, and the manual page."""

from tools.reference import FOLDER, PAGES, manual

(FOLDER / "schemas").mkdir(exist_ok=True)
for name, page in PAGES.items():
    (FOLDER / name).write_text(page(), encoding="utf-8")
manual.FILE.parent.mkdir(exist_ok=True)
manual.FILE.write_text(manual.page(), encoding="utf-8")
