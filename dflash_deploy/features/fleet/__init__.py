"""Several machines from one terminal: `ssh HOST dflash-deploy … --json` over the hosts of a file."""

from dflash_deploy.registry import Feature

SUMMARY = "Several machines over SSH: init, up, status, logs, test, down."
FEATURE = Feature({"fleet": (f"{__name__}.commands", SUMMARY)}, f"{__name__}.operations")
