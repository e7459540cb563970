"""Runs a script of others against recorders: what it would have started is read, and started it is not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.errors import BadInput
from dflash_deploy.foreign.forms import read_recipe
from dflash_deploy.foreign.items import RecipeRefused
from dflash_deploy.host.ask import ask
from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.intake.parse import Invalid, parse_object

LONGEST = 20  # seconds that a script may run
MOST_RECORDED = 1000  # commands

# Programs that a recorder replaces: they write down their arguments and do nothing.
_NAMES = """
docker podman nerdctl docker-compose apptainer singularity vllm sglang python python3 llama-server llama llama-swap ray
mpirun torchrun uv uvx pip pip3 pipx conda mamba micromamba hf huggingface-cli git curl wget ssh scp rsync sudo doas su
systemctl service loginctl kill pkill killall rm rmdir mv dd mkfs chmod chown ln tee sysctl modprobe nvidia-smi ufw
iptables ip apt apt-get dnf yum brew npm npx node cargo make cmake kubectl helm tmux screen crontab shutdown reboot
mount umount nohup setsid srun sbatch systemd-run timeout numactl taskset nice ollama
"""
RECORDED = tuple(_NAMES.split())

WHAT_IT_DOES = (
    "The script runs as you, in an empty directory, for at most {seconds} s, and once more past its checks if one ends "
    "it. {count} programs such as docker, vllm, "
    "python, ssh, sudo, curl and rm are replaced by recorders that do nothing. {network} "
    "Not held back: programs that it calls by their whole path, and files that it writes with `>`."
)

# Each recorder writes one line of JSON: the working directory is the script's own, so the place is in its environment.
_RECORDER = """#!{python} -IS
import json, os, sys
line = json.dumps({{"words": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "variables": dict(os.environ)}})
descriptor = os.open({record!r}, os.O_WRONLY | os.O_APPEND)
os.write(descriptor, line.encode() + b"\\n")
"""


# Read by bash before the script. The trace has each command with its values, in quotes as a shell reads it.
_PAST_CHECKS = """
unset BASH_ENV
exec 9>>{trace}
BASH_XTRACEFD=9
exit() {{ :; }}
exec() {{ :; }}
sleep() {{ :; }}
PS4=
set -T
trap 'set +eu' DEBUG
set -x
"""
_TRACED = re.compile(r"(?!set |\w+\+?=|\[|export |:$|echo |printf )")


@dataclass(frozen=True)
class DryRun:
    """The commands that a script would have started, as text; each with the variables that it exported."""

    commands: tuple[str, ...]
    said: str
    """The last line that it wrote to standard error."""


def notice() -> str:
    """What a dry run does, and what it cannot hold back; said before it."""
    network = "It has no network." if _without_network() else "`unshare -n` does not work here: it has the network."
    return WHAT_IT_DOES.format(seconds=LONGEST, count=len(RECORDED), network=network)


def dry_run(text: str) -> tuple[str, str]:
    """The command of an engine that a script would have started, and a remark on it or an empty text.

    If a check ends it before, such as one for a file that is not here, it runs once more past its checks. Raises
    RecipeRefused if it starts none, and BadInput without a shell.
    """
    run = recorded(text)
    if found := _first(run.commands):
        return found, ""
    if found := _first(recorded(text, past_checks=True).commands):
        return found, f"A check would end the script here, and this is what comes after it. It said: {run.said}"
    said = f"; it ended with: {run.said}" if run.said else ""
    raise RecipeRefused(
        f"the script would have started {len(run.commands)} commands, and no engine{said}",
        hint="paste the line that starts the engine",
    )


def _first(commands: Sequence[str]) -> str:
    """The first command that starts an engine; empty if none does."""
    for command in commands:
        with suppress(RecipeRefused):
            read_recipe(command)
            return command
    return ""


def recorded(text: str, *, past_checks: bool = False) -> DryRun:
    """Run a script in an empty directory with recorders in front of PATH.

    `past_checks` ignores what would end it, and also traces the commands that do not exist here.
    """
    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        raise BadInput("no shell is installed here", hint="paste the line that starts the engine")
    with tempfile.TemporaryDirectory() as place:
        record, bin_, work, home, trace = (Path(place) / name for name in ("record", "bin", "work", "home", "trace"))
        for directory in (bin_, work, home):
            directory.mkdir()
        record.touch()
        for name in RECORDED:
            recorder = bin_ / name
            recorder.write_text(_RECORDER.format(python=sys.executable, record=str(record)), encoding="utf-8")
            recorder.chmod(0o700)
        script = work / "script.sh"
        script.write_text(text, encoding="utf-8")
        environment = {
            "PATH": os.pathsep.join([str(bin_), os.environ.get("PATH", os.defpath)]),
            "HOME": str(home),
            "USER": os.environ.get("USER", "user"),
            "TERM": "dumb",
        }
        if past_checks:
            ahead = Path(place) / "ahead.sh"
            ahead.write_text(_PAST_CHECKS.format(trace=shlex.quote(str(trace))), encoding="utf-8")
            environment["BASH_ENV"] = str(ahead)
        words = [*_without_network(), shell, str(script)]
        done = ask(*words, timeout=LONGEST, environment=environment, directory=work)
        traced = read_text(trace, limit=8 * MIB).splitlines() if trace.is_file() else []
        there = {str(work): ".", str(home): "~", f"{bin_}/": "", place: ".."}
        found = [*_commands(record, environment), *filter(_TRACED.match, traced)][:MOST_RECORDED]
        commands = tuple(_outside(one, there) for one in found)
    said = [line for line in done.err.splitlines() if line.strip()]
    return DryRun(commands, said[-1][-200:] if said else done.problem)


def _outside(command: str, there: Mapping[str, str]) -> str:
    """A command with the places of the dry run as the script would have them."""
    for place, name in there.items():
        command = command.replace(place, name)
    return command


def _without_network() -> tuple[str, ...]:
    """The words before a command that take its network away; none if they do not work here."""
    words = ("unshare", "--user", "--map-current-user", "--net")
    return words if ask(*words, "true", timeout=5).good else ()


def _commands(record: Path, environment: Mapping[str, str]) -> Iterator[str]:
    for line in read_text(record, limit=8 * MIB).splitlines()[:MOST_RECORDED]:
        try:
            found = parse_object(line)
        except Invalid:
            continue
        words, variables = found.get("words"), found.get("variables")
        if not isinstance(words, list) or not isinstance(variables, dict):
            continue
        own = {
            name: str(value)
            for name, value in variables.items()
            if name not in environment
            and name not in ("PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE")
            and name.isidentifier()
        }
        before = [f"{name}={shlex.quote(value)}" for name, value in own.items()]
        yield " ".join([*before, shlex.join(map(str, words))])
