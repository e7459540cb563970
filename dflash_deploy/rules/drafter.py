"""Rules about the drafter: does the engine run it, and will its draft tokens be accepted?"""

from __future__ import annotations

from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.compatible import reads_quantized
from dflash_deploy.plan.model_metadata import metadata_of, nested
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule, reads_checkpoints
from dflash_deploy.serve.settings import Settings

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # variable of vLLM's environment: 0 chooses its V1 model runner
_OTHER_DRAFTER = "use upstream llama.cpp with a drafter in its format"


@reads_checkpoints
def drafter_unknown_to_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """The drafter on disk has an architecture that the engine does not know."""
    architecture = metadata_of(plan.checkpoints.drafter).architecture
    if not plan.drafting or architecture is None or architecture in plan.engine.drafters:
        return None
    return Finding(
        id="drafter-unknown-to-engine",
        severity="error",
        message=f"the drafter's architecture is {architecture}; {plan.engine.title} knows "
        + ", ".join(plan.engine.drafters),
        why="the engine ends with `unknown model architecture` or `architectures are not supported`",
        fix=f"empty {Settings.dflash_engine} so that the drafter's architecture decides, or choose another drafter",
        source="ggml-org/llama.cpp#25116; vllm-project/vllm#52816",
    )


@reads_checkpoints
def drafter_of_speculators(plan: Plan, facts: HostFacts) -> Finding | None:
    """The drafter on disk is in the format of the speculators library, which few engines read."""
    kind = nested(plan.checkpoints.drafter, "speculators_model_type")
    if not plan.drafting or kind is None or "speculators-drafters" in plan.engine.abilities:
        return None
    return Finding(
        id="drafter-of-speculators",
        severity="warning",
        message=f"the drafter is in the format of the speculators library; {plan.engine.title} is not known to read it",
        why="the engine does not find the drafter's layers in config.json",
        fix="choose vLLM 0.33, or the drafter that belongs to this target",
        source="vLLM 0.33.0 transformers_utils/configs/speculators; SGLang 0.5.23 has no reader of it",
    )


@reads_checkpoints
def drafter_windows_not_run(plan: Plan, facts: HostFacts) -> Finding | None:
    """The drafter on disk has sliding or mixed attention, which this release does not run."""
    kinds = nested(plan.checkpoints.drafter, "layer_types")
    if not plan.drafting or not isinstance(kinds, list) or plan.engine.kind.windows_in_header:
        return None
    mixed, sliding = any(kind != kinds[0] for kind in kinds), "sliding_attention" in kinds
    needed = "mixed-drafters" if mixed else "sliding-drafters" if sliding else None
    if needed is None or needed in plan.engine.abilities:
        return None
    attention = "mixed sliding and full attention" if mixed else "sliding attention"
    return Finding(
        id="drafter-windows-not-run",
        severity="error",
        message=f"the drafter has {attention}; {plan.engine.title} does not support it",
        why="older releases refuse it, or run windows as full attention: acceptance collapses beyond 2048 tokens",
        fix="use vLLM 0.29 or newer, or the first revision of the drafter",
        source="vllm-project/vllm#40898, #47914, #48113; 0.26 to 0.28 run mixed windows only on the V2 model runner",
    )


def runner_cannot_draft(plan: Plan, facts: HostFacts) -> Finding | None:
    """vLLM's V1 model runner is chosen, which refuses DFlash2 and drafters with mixed windows."""
    if (
        not plan.drafting
        or plan.values.get(_RUNNER, "").strip() != "0"
        or "mixed-drafters" not in plan.engine.abilities
    ):
        return None
    drafter = plan.pair.drafter
    architecture = metadata_of(plan.checkpoints.drafter).architecture or drafter.architecture
    kinds = nested(plan.checkpoints.drafter, "layer_types")
    mixed = any(kind != kinds[0] for kind in kinds) if isinstance(kinds, list) else drafter.layer_types == "mixed"
    if architecture == "DFlash2DraftModel":
        what = "DFlash2"
    elif mixed:
        what = "mixed sliding and full attention"
    else:
        return None
    return Finding(
        id="runner-cannot-draft",
        severity="error",
        message=f"{_RUNNER}=0, but the drafter has {what}, which only the V2 model runner runs",
        why="vLLM ends with `Model Runner V1 does not support`",
        fix=f"remove {_RUNNER} from .env",
        source="vLLM 0.33.0 config/vllm.py, _get_v1_model_runner_unsupported_features",
    )


@reads_checkpoints
def drafter_quantised(plan: Plan, facts: HostFacts) -> Finding | None:
    """A quantized drafter with an engine that is not llama.cpp."""
    quantized = nested(plan.checkpoints.drafter, "quantization_config") is not None
    if not plan.drafting or plan.engine.kind.quantized_drafters:
        return None
    if not quantized and not plan.pair.drafter.quantised:
        return None
    # the catalog's own drafter, which others ran with this engine
    known = plan.pair.drafter.quantised and reads_quantized(plan.pair.drafter, plan.engine)
    return Finding(
        id="drafter-quantised",
        severity="note" if known else "warning",
        message="the drafter's weights are quantized",
        why="the engine can misread them without any error, and then accepts no draft tokens",
        fix="use the BF16 drafter, or measure the acceptance length with `dflash-deploy bench`",
        source="vllm-project/vllm#51581, open; sgl-project/sglang#39087",
    )


def repository_gated(plan: Plan, facts: HostFacts) -> Finding | None:
    """Repositories that require accepted terms."""
    gated = [
        weights.repo
        for weights, used in ((plan.pair.target, True), (plan.pair.drafter, plan.drafting))
        if weights.gated and used and weights.repo
    ]
    if not gated:
        return None
    return Finding(
        id="repository-gated",
        severity="note",
        message=f"{' and '.join(gated)}: only accounts that accepted its terms can download it",
        why="without accepted terms and a token the download ends with 401 or 403",
        fix=f"accept the terms on https://huggingface.co/{gated[0]}, and set {Settings.hf_token} in .env",
        source="gated repositories of the Hugging Face Hub",
    )


def thinking_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """The target thinks and the drafter was trained without thinking, or the reverse."""
    family = plan.pair.family
    if not plan.drafting or family.drafter_thinking in {None, "both"} or family.thinking == "none":
        return None
    written = plan.settings.enable_thinking
    thinks = family.thinking in {"on", "always"} if written is None else written
    if thinks == family.drafter_thinking:
        return None
    switch = "on" if family.drafter_thinking else "off"
    return Finding(
        id="thinking-differs",
        severity="warning",
        message=f"the target {'thinks' if thinks else 'does not think'} by default; the drafter was trained "
        f"{'with' if family.drafter_thinking else 'without'} thinking",
        why="the drafter was trained on another kind of text, and acceptance collapses",
        fix=f"set {Settings.enable_thinking}={switch}, or measure the acceptance length with `dflash-deploy bench`",
        source="z-lab/dflash#60; z-lab drafter cards",
    )


def slots_without_drafts(plan: Plan, facts: HostFacts) -> Finding | None:
    """More sequences than the fork makes draft tokens for."""
    sequences, drafted = plan.settings.max_num_seqs, plan.engine.kind.drafting_sequences
    if not plan.drafting or sequences is None or drafted is None or sequences <= drafted:
        return None
    return Finding(
        id="slots-without-drafts",
        severity="warning",
        message=f"{Settings.max_num_seqs}={sequences}; {plan.engine.title} makes draft tokens for {drafted} at a time",
        why="sequences beyond the fork's own limit decode without draft tokens",
        fix=f"set {Settings.max_num_seqs}={drafted}, or {_OTHER_DRAFTER}",
        source="buun-llama-cpp 1c4788192, --dflash-max-slots",
    )


def answers_change(plan: Plan, facts: HostFacts) -> Finding | None:
    """A release that does not restore the whole state of a hybrid target after a rejected draft token."""
    bug = next((bug for bug in plan.engine.open_bugs if bug.changes_answers), None)
    if not plan.drafting or bug is None or plan.pair.shape.linear_attention is None:
        return None
    return Finding(
        id="answers-change",
        severity="warning",
        message=f"{plan.engine.title}: {bug.what}",
        why="drafts must not change greedy answers; these can repeat themselves or end in nonsense",
        fix=bug.workaround,
        source=bug.source,
    )


def more_sequences_than_sound(plan: Plan, facts: HostFacts) -> Finding | None:
    """A release that ends, or changes answers, if it makes draft tokens for many sequences at the same time."""
    sequences, limit = plan.settings.max_num_seqs, plan.engine.limit_of_sequences
    if not plan.drafting or sequences is None or limit is None or sequences <= limit[0]:
        return None
    bug = limit[1]
    return Finding(
        id="more-sequences-than-sound",
        severity="warning",
        message=f"{Settings.max_num_seqs}={sequences}; {plan.engine.title}: {bug.what}",
        why="answers are not the target's own, or all requests in progress are lost",
        fix=f"set {bug.workaround}",
        source=bug.source,
    )


def images_are_not_drafted(plan: Plan, facts: HostFacts) -> Finding | None:
    """The buun fork makes no draft tokens while a vision projector is loaded."""
    if not plan.drafting or "drafts-with-images" in plan.engine.abilities or not plan.settings.mmproj_file:
        return None
    return Finding(
        id="images-are-not-drafted",
        severity="warning",
        message=f"{plan.engine.title} makes no draft tokens while a vision projector is loaded",
        why="everything is decoded without draft tokens, text too",
        fix=f"empty {Settings.mmproj_file} for speed, or {_OTHER_DRAFTER}",
        source="buun-llama-cpp 1c4788192 server-context.cpp",
    )


def images_while_drafting(plan: Plan, facts: HostFacts) -> Finding | None:
    """A release with an open bug of requests with images while it makes draft tokens."""
    if not plan.drafting or not plan.settings.mmproj_file:
        return None
    bug = next((bug for bug in plan.engine.open_bugs if bug.setting == f"{Settings.mmproj_file}=*"), None)
    if bug is None:
        return None
    return Finding(
        id="images-while-drafting",
        severity="note",
        message=f"{plan.engine.title}: {bug.what}",
        why="such a request fails, and others wait for it",
        fix=f"check with `dflash-deploy test`; for many images {bug.workaround}",
        source=bug.source,
    )


def parser_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """A parser of thinking or tool calls that is not the model's."""
    if not plan.engine.kind.knows(Settings.reasoning_parser):
        return None
    for field, right in (
        (Settings.reasoning_parser, plan.pair.family.reasoning_parser),
        (Settings.tool_call_parser, plan.pair.family.tool_call_parser),
    ):
        written = plan.settings[field]
        if right is not None and written != plan.engine.parser(field.name, right):
            return Finding(
                id="parser-differs",
                severity="warning",
                message=f"{field} is {written or 'empty'}; {plan.pair.family.title} writes the format of {right}",
                why="thinking appears in the answer, or tool calls arrive as text",
                fix=f"set {field}={plan.engine.parser(field.name, right)}",
                source="the model's card",
            )
    return None


RULES: tuple[Rule, ...] = (
    answers_change,
    slots_without_drafts,
    more_sequences_than_sound,
    drafter_unknown_to_engine,
    drafter_of_speculators,
    drafter_windows_not_run,
    runner_cannot_draft,
    drafter_quantised,
    repository_gated,
    thinking_differs,
    images_are_not_drafted,
    images_while_drafting,
    parser_differs,
)
