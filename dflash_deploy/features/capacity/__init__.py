"""How many replicas a load needs: the load, the service of one engine, a queueing simulation, and the decision."""

from dflash_deploy.registry import Feature

FEATURE = Feature(
    commands={
        "capacity": (f"{__name__}.commands", "Show how many replicas a load needs, with and without drafts."),
    },
    documents=f"{__name__}.operations",
)
