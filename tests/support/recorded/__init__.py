"""What programs printed on machines of others. The README.md of each folder says where it was seen."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def recorded(program: str, name: str) -> str:
    """The recorded output of a program."""
    return (_FOLDER / program / name).read_text(encoding="utf-8")


def plays(place: Path, program: str, name: str, *, code: int = 0, body: str = "") -> str:
    """Write a script to `place` that prints a recording, after `body` had its chance to do something else."""
    script = place / program
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/sh\n{body}\ncat '{_FOLDER / program / name}'\nexit {code}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)
