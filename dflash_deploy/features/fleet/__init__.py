"""Several machines from one terminal: `fleet.yaml`, SSH, and what a host needs before an engine starts on it."""

from dflash_deploy.registry import Feature

FEATURE = Feature(
    commands={
        "fleet": (f"{__name__}.commands", "Several machines over SSH: init, up, status, test, logs, down."),
    },
    documents=f"{__name__}.operations",
)
