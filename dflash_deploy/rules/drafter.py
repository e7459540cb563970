"""Rules about the drafter: does the engine run it, and will it be accepted?"""

from __future__ import annotations

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.model_metadata import nested, stated
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule, reads_checkpoints
from dflash_deploy.serve.settings import Settings


@reads_checkpoints
def drafter_unknown_to_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """The architecture that the drafter on disk states."""
    seen = stated(plan.checkpoints.drafter).architecture
    if not plan.drafting or seen is None or seen in plan.engine.drafters:
        return None
    return Finding(
        "drafter-unknown-to-engine",
        "error",
        f"the drafter's architecture is {seen}; {plan.engine.title} knows {', '.join(plan.engine.drafters)}",
        "empty DFLASH_ENGINE to let the drafter decide, or choose another drafter",
        "ggml-org/llama.cpp#25116; vllm-project/vllm#52816",
        why="the engine ends with `unknown model architecture` or `architectures are not supported`",
    )


@reads_checkpoints
def drafter_windows_not_run(plan: Plan, facts: HostFacts) -> Finding | None:
    """Mixed sliding and full attention in the drafter on disk."""
    kinds = nested(plan.checkpoints.drafter, "layer_types")
    if not plan.drafting or not isinstance(kinds, list) or plan.engine.kind.windows_in_header:
        return None
    mixed, sliding = len(set(kinds)) > 1, "sliding_attention" in kinds
    needed = "mixed-drafters" if mixed else "sliding-drafters" if sliding else None
    if needed is None or needed in plan.engine.abilities:
        return None
    return Finding(
        "drafter-windows-not-run",
        "error",
        f"the drafter has {'mixed sliding and full' if mixed else 'sliding'} attention; {plan.engine.title} has not",
        "use vLLM 0.26 or newer, or the first revision of the drafter",
        "vllm-project/vllm#40898, #47914",
        why="older releases refuse it, or run windows as full attention: acceptance collapses beyond 2048 tokens",
    )


@reads_checkpoints
def drafter_quantised(plan: Plan, facts: HostFacts) -> Finding | None:
    """Quantised drafters are for llama.cpp."""
    quantised = nested(plan.checkpoints.drafter, "quantization_config") is not None
    if not plan.drafting or plan.engine.kind.quantized_drafters:
        return None
    if not quantised and not plan.pair.drafter.quantised:
        return None
    return Finding(
        "drafter-quantised",
        "warning",
        "the drafter's weights are quantised",
        "use the BF16 drafter",
        "vllm-project/vllm#51581, open",
        why="it can be read wrongly without any error, and nothing is accepted",
    )


def repository_gated(plan: Plan, facts: HostFacts) -> Finding | None:
    """Repositories behind terms."""
    asked = [
        weights.repo
        for weights, used in ((plan.pair.target, True), (plan.pair.drafter, plan.drafting))
        if weights.gated and used and weights.repo
    ]
    if not asked:
        return None
    return Finding(
        "repository-gated",
        "note",
        f"{' and '.join(asked)}: the hub gives it to accounts that accepted its terms",
        f"accept them on https://huggingface.co/{asked[0]}, and write your token to HF_TOKEN in .env",
        "the hub's gated repositories",
        why="the download ends with 401 or 403 without",
    )


def thinking_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """A drafter is accepted where the target speaks as it did in the drafter's training."""
    family = plan.pair.family
    if not plan.drafting or family.drafter_thinking is None or family.thinking == "none":
        return None
    written = plan.settings.enable_thinking
    thinks = family.thinking in {"on", "always"} if written is None else written
    if thinks == family.drafter_thinking:
        return None
    return Finding(
        "thinking-differs",
        "warning",
        f"the target {'thinks' if thinks else 'does not think'} by default, the drafter was trained "
        f"{'with' if family.drafter_thinking else 'without'} thinking",
        f"set ENABLE_THINKING={'on' if family.drafter_thinking else 'off'}, or measure what it costs",
        "z-lab/dflash#60; z-lab drafter cards",
        why="drafts are made for another kind of text, and acceptance collapses",
    )


def slots_without_drafts(plan: Plan, facts: HostFacts) -> Finding | None:
    """The fork drafts in few slots."""
    slots, drafted = plan.settings.max_num_seqs, plan.engine.kind.drafting_sequences
    if not plan.drafting or slots is None or drafted is None or slots <= drafted:
        return None
    return Finding(
        "slots-without-drafts",
        "warning",
        f"MAX_NUM_SEQS={slots} with {plan.engine.title}",
        "set MAX_NUM_SEQS=1, or use upstream llama.cpp with a drafter of its own form",
        "buun-llama-cpp 1c4788192, --dflash-max-slots",
        why="slots beyond the fork's own limit decode without drafts",
    )


def images_are_not_drafted(plan: Plan, facts: HostFacts) -> Finding | None:
    """The buun fork switches drafting off where a projector is loaded."""
    if not plan.drafting or "drafts-with-images" in plan.engine.abilities or not plan.settings.mmproj_file:
        return None
    return Finding(
        "images-are-not-drafted",
        "warning",
        f"{plan.engine.title} does not draft at all while a vision projector is loaded",
        "empty MMPROJ_FILE for speed, or use upstream llama.cpp with a drafter of its own form",
        "buun-llama-cpp 1c4788192 server-context.cpp",
        why="everything is decoded plainly, text too",
    )


def parser_differs(plan: Plan, facts: HostFacts) -> Finding | None:
    """Without its parser a model's thinking stands in the answer, and tool calls are text."""
    if not plan.engine.kind.knows(Settings.reasoning_parser):
        return None
    for name, right in (
        (Settings.reasoning_parser, plan.pair.family.reasoning_parser),
        (Settings.tool_call_parser, plan.pair.family.tool_call_parser),
    ):
        written = name.text(plan.values)
        if right is not None and written != plan.engine.parser(right):
            return Finding(
                "parser-differs",
                "warning",
                f"{name} is {written or 'empty'}; {plan.pair.family.title} speaks the form of {right}",
                f"set {name}={plan.engine.parser(right)}",
                "the model's card",
                why="thinking stands in the answer, or tool calls arrive as text",
            )
    return None


RULES: tuple[Rule, ...] = (
    slots_without_drafts,
    drafter_unknown_to_engine,
    drafter_windows_not_run,
    drafter_quantised,
    repository_gated,
    thinking_differs,
    images_are_not_drafted,
    parser_differs,
)
