"""`pull` compared with `hf download`, and verification compared with `sha256sum`: the same 2 GB in 8 files, one run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from dflash_deploy.weights.check import verify
from dflash_deploy.weights.lock import LockedModel, read_lock
from tests.support.box import CONFIG, DRAFTS, Box
from tests.support.hub import Generated, Hub

REPEATS = 5
FILES = 8
SIZE = 250_000_000


def rows() -> Iterator[Row]:
    """Throughput in MB/s: first the other program, then this one."""
    with tempfile.TemporaryDirectory() as folder, Hub() as hub:
        shards = {f"model-{number}.safetensors": Generated(SIZE, seed=number) for number in range(FILES)}
        hub.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", **shards})
        hub.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": Generated(1_000, seed=99)})
        box = Box(hub, Path(folder))
        theirs, ours = [], []
        for _ in range(REPEATS):
            theirs.append(_rate(lambda: _client(box, Path(folder) / "theirs")))
            shutil.rmtree(Path(folder) / "theirs")
            shutil.rmtree(box.models, ignore_errors=True)
            ours.append(_rate(lambda: box.pull().succeeded()))
        yield Row(
            "pull of 2 GB in 8 files, compared with hf download", median(theirs), median(ours), "MB/s", "1.0", REPEATS
        )
        lock = read_lock(box.directory / "dflash.lock")
        if lock is None:
            raise RuntimeError("pull did not write dflash.lock")
        paths = [box.models / "target" / name for name in shards]
        plain = [
            _rate(lambda: subprocess.run(["sha256sum", *paths], check=True, capture_output=True))
            for _ in range(REPEATS)
        ]
        for workers, aim in ((1, "0.9"), (2, "more than 1")):
            model = lock.models["target"]
            checked = [_rate(partial(_verify, box, model, workers)) for _ in range(REPEATS)]
            what = f"verification on {workers} core{'s' if workers > 1 else ''}, compared with sha256sum"
            yield Row(what, median(plain), median(checked), "MB/s", aim, REPEATS)


def _verify(box: Box, model: LockedModel, workers: int) -> None:
    if any(problem for _, problem in verify(box.models / "target", model, workers=workers)):
        raise RuntimeError("a downloaded file does not match its checksum")


def _client(box: Box, place: Path) -> None:
    """Download with `hf download` into a directory; its metadata cache is stored there too."""
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", "o/target", "--local-dir", str(place)]
    subprocess.run(command, env=os.environ | box.environment, check=True, capture_output=True)


def _rate(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return FILES * SIZE / 1e6 / (time.perf_counter() - began)
