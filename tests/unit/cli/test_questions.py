"""The questions of `init`: a use that nothing of the profile suits is named."""

from types import SimpleNamespace

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli import init as options
from dflash_deploy.operations import plan
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES

BOX = "rtx-3090"


@pytest.mark.parametrize(("model", "said"), [("qwen3.5-27b-gguf-buun", 1), ("qwen3.5-27b-gguf", 0)])
def test_vision_without_a_model_that_reads_images(
    model: str, said: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan_deployment(MACHINES[BOX], Choice(profile=BOX, model=model), load_catalog())
    offered = SimpleNamespace(
        facts=MACHINES[BOX],
        catalog=load_catalog(),
        fitting=BOX,
        recipes=lambda profile: (),
        plan=lambda profile, recipe: made,
        free_port=lambda planned: 8000,
        runtimes=lambda planned: ("compose",),
    )
    monkeypatch.setattr(plan, "offer", lambda directory: offered)
    answers = iter(("", "vision", "", ""))
    monkeypatch.setattr(options, "_line", lambda: next(answers))
    assert options.ask(None).recipe is None
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.count(f"No recipe or model of {BOX} reads images") == said
