"""The commands that are killed, each with a deployment that it changes."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.box import CONFIG, DRAFTS, Box
from tests.support.cli import edit_env, initialise
from tests.support.hub import Generated, Hub
from tests.support.ports import free_port
from tests.support.scripted_vllm import installed_in
from tools.kills.trial import Nursery, Trial

NATIVE = ("--profile", "cpu", "--runtime", "native")
WEIGHTS = Generated(5_000_000, seed=1)


@contextmanager
def scene(command: str, place: Path) -> Iterator[Trial]:
    """A deployment in a new directory, and the command that has not run there yet."""
    root = place / "root"
    deployment = root / "deployment"
    deployment.mkdir(parents=True)
    with ExitStack() as stack:
        variables = installed_in(place / "site")
        if command == "pull":
            variables |= stack.enter_context(_hub(root))
        elif command != "init":
            initialise(*NATIVE, "--port", str(free_port()), at=deployment)
        nursery = Nursery({**os.environ, **variables})
        stack.callback(nursery.close)
        trial = Trial(nursery, root, COMMANDS[command])
        stack.callback(trial.end_engines)
        if command == "init":
            # the deployment may be complete already
            trial.repeated = frozenset({0, 2})
        elif command == "render":
            _let_render_write(deployment)
        elif command == "rollback":
            _let_roll_back(trial)
        trial.learn()
        yield trial


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "init": ("init", *NATIVE),
    "pull": ("pull",),
    "render": ("render",),
    "keys rotate": ("keys", "rotate"),
    "up": ("up",),
    "rollback": ("rollback",),
}


@contextmanager
def _hub(root: Path) -> Iterator[dict[str, str]]:
    with Hub() as hub:
        hub.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": WEIGHTS})
        hub.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": Generated(1_000_000, seed=2)})
        shutil.rmtree(root / "deployment")
        yield Box(hub, root).environment


def _let_render_write(deployment: Path) -> None:
    """As after an update of the program: the build context and compose.yaml are old."""
    with (deployment / "compose.yaml").open("a") as file:
        file.write("# an older line\n")
    (deployment / ".dflash" / "build" / "images" / "vllm" / "Dockerfile").write_text("FROM an-older-image\n")


def _let_roll_back(trial: Trial) -> None:
    """A good start, and another setting after it."""
    assert trial.run(args=("up",)).code == 0, trial.said
    assert trial.run(args=("down",)).code == 0, trial.said
    edit_env(trial.directory, MAX_NUM_SEQS="2")
