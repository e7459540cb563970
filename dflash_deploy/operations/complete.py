"""What a start does before it starts anything: it fetches the weights that are missing."""

from __future__ import annotations

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import WeightsMissing
from dflash_deploy.operations.asking import ask_before_download
from dflash_deploy.operations.fetching import fetch_missing
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.plan import Plan
from dflash_deploy.planning import plan_of
from dflash_deploy.runtime import runtime_for
from dflash_deploy.startup.preflight import preflight
from dflash_deploy.weights.pull import requested_models


def with_weights(deployment: Deployment, reporter: Reporter, *, ask: bool) -> Plan:
    """The plan, after missing weights were fetched: their configuration may change it.

    `ask`: the engine makes its configuration from config.json first. Raises PreflightRefused and DownloadFailed.
    """
    plan = plan_of(deployment)
    try:
        # `joining`: whether this machine answers requests is checked when it is started
        preflight(deployment, plan, runtime_for(deployment, plan), joining=True)
    except WeightsMissing:
        wanted = requested_models(deployment, plan)
        if not wanted:
            raise
        if ask:
            ask_before_download(deployment, plan, reporter)
        reporter.note("weights are missing: fetching them, as `dflash-deploy pull` does")
        fetch_missing(deployment, wanted, reporter=reporter)
        return plan_of(deployment)
    return plan
