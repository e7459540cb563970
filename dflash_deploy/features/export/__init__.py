"""What a deployment grows into: its settings for Ray Serve, on several machines or on Kubernetes."""

from dflash_deploy.registry import Feature

SUMMARY = "Files for Ray Serve on several machines or on Kubernetes: ray."
FEATURE = Feature({"export": (f"{__name__}.commands", SUMMARY)}, f"{__name__}.ray")
