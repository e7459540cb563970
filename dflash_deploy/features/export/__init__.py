"""A deployment elsewhere: manifests for Kubernetes, a folder for Compose."""

from dflash_deploy.registry import Feature

FEATURE = Feature(
    commands={
        "export": (f"{__name__}.commands", "The deployment elsewhere: kubernetes, compose."),
    },
    documents=f"{__name__}.operations",
)
