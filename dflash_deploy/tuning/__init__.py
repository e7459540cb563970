"""Which settings of the drafter are fastest on this machine: measure a few, predict the rest, measure the best."""

from dflash_deploy.tuning.experiment import Experiment, knows_schedules, pooled, prepare, usual_concurrency
from dflash_deploy.tuning.rig import MeasurementReporter, Tried
from dflash_deploy.tuning.run import Outcome, Pace, estimate, run
from dflash_deploy.tuning.sequences import Sequences

__all__ = [
    "Experiment",
    "MeasurementReporter",
    "Outcome",
    "Pace",
    "Sequences",
    "Tried",
    "estimate",
    "knows_schedules",
    "pooled",
    "prepare",
    "run",
    "usual_concurrency",
]
