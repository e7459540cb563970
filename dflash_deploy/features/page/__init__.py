"""`open`: a page of this machine to talk to the model, with the engine's state, its figures and its clients."""

from dflash_deploy.registry import Feature

DOCUMENTS: dict[str, type] = {}  # `open` prints no document: it runs until it is stopped

FEATURE = Feature(
    commands={"open": (f"{__name__}.commands", "Talk to the model on a page of this machine.")},
    documents=__name__,
    section="Use",
)
