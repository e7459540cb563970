"""The pictures of the documents: which commands each one shows, and how its text is compared with what they print."""

import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.ports import free_port
from tools.pictures.terminal import Line, Run, record

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"

PROMPT = "$ "
SVG = "{http://www.w3.org/2000/svg}"

HOME = "/home/you/box"  # the directory of the deployment in a picture


@dataclass(frozen=True)
class Shot:
    """A picture. `commands` are those of `dflash-deploy`; each is run, and the screens are below one another.

    `before` run without being shown, `after` in any case; `files` of this folder are copied to the directory. `lines`
    are the most that a command shows; the rest is replaced by an ellipsis. `engine`: whether it starts one.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    before: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    columns: int = 100
    lines: int = 60
    engine: bool = False
    moving: bool = False


SERVE = "init --profile cpu --runtime native"

ALBUM = (
    Shot(
        "talk",
        "A terminal: ask answers a question about a picture, with tokens per second and acceptance length",
        ('ask "What colour is this image?" --image green.png', 'ask "What is the capital of France?"'),
        before=("init --profile cpu --engine llamacpp --runtime native", "up"),
        after=("down",),
        files=("green.png",),
        engine=True,
    ),
    Shot(
        "first-run",
        "A terminal: up starts the engine and waits for an answer, test checks the endpoint; each check is shown",
        ("up", "test"),
        before=(SERVE,),
        after=("down",),
        columns=110,
        engine=True,
    ),
    Shot(
        "plan",
        "A terminal: plan shows each setting for a DGX Spark with its origin, its reason and the source of the fact",
        ("plan --profile dgx-spark",),
        columns=130,
        lines=40,
    ),
    Shot(
        "profiles",
        "A terminal: profiles list shows the hardware profiles, their models, and which one fits this machine",
        ("profiles list",),
        columns=110,
    ),
)


def taken(shot: Shot, directory: Path) -> list[Line]:
    """The screens of its commands, run in the empty `directory`, each below its command."""
    port = str(free_port())
    try:
        for command in shot.before:
            _run(command, directory, shot, port)
        for name in shot.files:
            shutil.copy(FOLDER / name, directory)
        lines: list[Line] = []
        elapsed = 0.0
        for command in shot.commands:
            screen = _run(command, directory, shot, port)
            shown = screen[: shot.lines] + ([_line("…")] if len(screen) > shot.lines else [])
            lines += [Line(elapsed, (Run(0, f"{PROMPT}dflash-deploy {command}", "default", True),))]
            lines += [Line(elapsed + 0.5 + line.seconds, line.runs) for line in shown]
            elapsed = lines[-1].seconds + 0.5
            lines.append(Line(elapsed, ()))
        return lines[:-1]
    finally:
        for command in shot.after:
            _run(command, directory, shot, port)


def _line(text: str) -> Line:
    return Line(0.0, (Run(0, text, "default", False),))


def _run(command: str, directory: Path, shot: Shot, port: str) -> list[Line]:
    """The screen of a command. The port and the directories are shown as people would have them."""
    words = [sys.executable, "-m", "dflash_deploy", *shlex.split(command)]
    if command.startswith("init"):
        words += ["--port", port]
    # an engine writes its caches there
    home = {} if shot.engine else {"HOME": str(Path(HOME).parent)}
    screen = record(words, at=directory, columns=shot.columns, environment=home)
    return [Line(line.seconds, tuple(_renamed(run, directory, port) for run in line.runs)) for line in screen]


def _renamed(run: Run, directory: Path, port: str) -> Run:
    text = run.text.replace(str(directory), HOME).replace(port, "8000")
    return Run(run.column, text, run.colour, run.bold)


def texts(svg: str) -> list[str]:
    """The lines of a picture, top to bottom."""
    # this file is ours, and holds no entities
    root = ElementTree.fromstring(svg)
    return [" ".join(text.text or "" for text in group.iter(f"{SVG}text")) for group in root.iter(f"{SVG}g")]


def outline(lines: list[str]) -> list[str]:
    """Lines without what differs from run to run: numbers, and the length of spaces and rules between them."""
    return [re.sub(r"\s+", " ", re.sub(r"[0-9][0-9.,]*", "0", line)).strip() for line in lines]
