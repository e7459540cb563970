"""The program that docs/reference/python-api.md shows."""

import re
from pathlib import Path

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python-api.md"


def program() -> str:
    """Its source; there is exactly one."""
    (source,) = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return str(source)
