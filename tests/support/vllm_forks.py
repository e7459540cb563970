"""A process that has imported vLLM for the CPU, with the patches, and forks for each program that a test runs in it.

The imports of vLLM take twelve seconds of CPU time, a fork none. Its program has its own arguments, variables, output
and exit code; what vLLM reads when it is imported is the same for all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from signal import alarm
from typing import IO

from dflash_deploy.serve.engines.installed import installed_vllm
from tests.support.cli import HANGS

ROOT = Path(__file__).parents[2]

# What its programs import that takes long: vLLM's configuration and its parser.
IMPORTED = ("vllm.engine.arg_utils", "vllm.entrypoints.launchers.cli_args")


@dataclass(frozen=True)
class VllmForks:
    """The process, its pipes, and the folder in which forks write their output."""

    asked: IO[str]
    said: IO[str]
    folder: Path

    def run(
        self, code: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code to its end in a fork, with these arguments and variables. One that hangs is ended."""
        out, err = self.folder / "out", self.folder / "err"
        asked = {
            "code": code,
            "arguments": arguments,
            "environment": dict(os.environ if environment is None else environment),
            "files": [str(out), str(err)],
        }
        self.asked.write(f"{json.dumps(asked)}\n")
        self.asked.flush()
        status = int(self.said.readline())
        return subprocess.CompletedProcess(code, status, out.read_text(errors="replace"), err.read_text())


@contextmanager
def vllm_forks() -> Iterator[VllmForks]:
    """The process, for as long as the block runs."""
    engine = installed_vllm()
    assert engine is not None
    # beside other tests, several threads spend more time waiting for each other than they save
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=engine.environment(os.environ | own),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield VllmForks(process.stdin, process.stdout, Path(folder))
        finally:
            process.stdin.close()


# what follows runs in the process and in its forks


def main() -> None:
    """Import, and fork for each line of standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    # vLLM writes there too
    os.dup2(2, 1)
    for module in IMPORTED:
        import_module(module)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(**json.loads(line))
        _, status = os.waitpid(pid, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _become(code: str, arguments: list[str], environment: dict[str, str], files: list[str]) -> None:
    """Be the program, in a process that has just been forked."""
    alarm(HANGS)
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["", *arguments]
    status = 1
    try:
        exec(code, {})
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
