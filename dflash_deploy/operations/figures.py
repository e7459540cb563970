"""The figures that `bench` leaves in a deployment."""

from __future__ import annotations

from pathlib import Path

from dflash_deploy.bench.figures import SIZES
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.errors import BadInput, FileRefused
from dflash_deploy.intake.documents import BenchFigures, BenchRow, BenchRun, parse_document, read_state
from dflash_deploy.intake.files import MIB, read_argument, shown
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.serve.settings import Settings

LARGEST_FIGURES = 16 * MIB

DESCRIBING = (
    *SIZES,
    Settings.replicas,
    Settings.tensor_parallel_size,
    Settings.nodes,
    Settings.distributed_executor,
    Settings.model_file,
    Settings.quantization,
    Settings.kv_cache_dtype,
    Settings.attention_backend,
    Settings.enforce_eager,
    Settings.omp_wait_policy,
    Settings.extra_args,
)
"""Settings that a figure means little without."""

LAST_FIGURES, LAST_BASELINE = "bench.json", "bench-baseline.json"
"""In `.dflash/`: the figures of the last run, and of the last one that measured without speculative decoding."""


def keep_figures(deployment: Deployment, text: str, *, baseline: bool) -> None:
    """Keep the document of a run of `bench`. Raises OSError if it cannot be written.

    `baseline`: it measured this deployment without speculative decoding too.
    """
    for name in (LAST_FIGURES, LAST_BASELINE) if baseline else (LAST_FIGURES,):
        write_atomically(deployment.make_state() / name, text, mode=PRIVATE)


def last_figures(deployment: Deployment, name: str = LAST_FIGURES) -> BenchRun | None:
    """The figures of the last run; `None` if there was none, or its file was changed."""
    try:
        kept = read_state(deployment.state / name, BenchFigures, limit=LARGEST_FIGURES)
    except FileRefused:
        return None
    return None if kept is None else kept.data


def rows_below_limit(run: BenchRun) -> list[BenchRow]:
    """The rows of a run, less those with more clients than MAX_NUM_SEQS: they measured the wait."""
    written = run.measured.settings.get(Settings.max_num_seqs.name, "")
    most = int(written) if written.isdecimal() else None
    return [row for row in run.rows if most is None or row.concurrency <= most]


def figures_in(path: Path) -> BenchRun:
    """The figures in a file. Raises BadInput if it is not one of `bench`."""
    hint = "name a file that `bench --save` wrote"
    try:
        return parse_document(read_argument(path, limit=LARGEST_FIGURES), BenchFigures, limit=LARGEST_FIGURES).data
    except FileRefused as problem:
        raise BadInput(f"{shown(path)} cannot be read: {problem.message}", hint=hint) from None
    except Invalid as problem:
        raise BadInput(f"{shown(path)} {problem}", hint=hint) from None
