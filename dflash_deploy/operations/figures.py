"""The figures that `bench` leaves in a deployment."""

from __future__ import annotations

from dflash_deploy.bench.figures import SIZES
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake.documents import BenchFigures, BenchRun, read_state
from dflash_deploy.intake.files import MIB
from dflash_deploy.serve.settings import Settings

LARGEST_FIGURES = 16 * MIB

# Settings that a figure means little without.
DESCRIBING = (
    *SIZES,
    Settings.data_parallel_size,
    Settings.tensor_parallel_size,
    Settings.nodes,
    Settings.model_file,
    Settings.quantization,
    Settings.kv_cache_dtype,
    Settings.attention_backend,
    Settings.enforce_eager,
    Settings.extra_args,
)

# In `.dflash/`: the figures of the last run, and of the last one that measured without speculative decoding.
LAST_FIGURES, LAST_BASELINE = "bench.json", "bench-baseline.json"


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
