"""Rules about weights: are they the planned ones, do target and drafter go together?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.host import HostFacts
from dflash_deploy.plan.command import is_directory
from dflash_deploy.plan.model_metadata import Stated, stated
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule, reads_checkpoints


def weights_of_another_model(plan: Plan, facts: HostFacts) -> Finding | None:
    """DFLASH_PAIR changed by hand, and the weights left as they were."""
    if not plan.weights_of or plan.pair.name in plan.weights_of:
        return None
    return Finding(
        "weights-of-another-model",
        "error",
        f"DFLASH_PAIR={plan.pair.name}, but MODEL_HOST_PATH is named after {plan.weights_of[0]}",
        f"write DFLASH_PAIR={plan.weights_of[0]}, or `dflash-deploy init --force --model {plan.pair.name}`",
        why="memory, parsers and rules are those of one model, and what is served is another",
    )


@reads_checkpoints
def target_of_another_model(plan: Plan, facts: HostFacts) -> Finding | None:
    """The weights in MODEL_HOST_PATH are not those that the plan was made for."""
    seen, shape = stated(plan.checkpoints.target), plan.pair.shape
    if seen.hidden_size is None or seen.hidden_size == shape.hidden_size:
        return None
    return Finding(
        "target-of-another-model",
        "error",
        f"the target in {plan.settings.model_host_path} has a hidden size of {seen.hidden_size}; "
        f"{plan.pair.family.title} has {shape.hidden_size}",
        "`dflash-deploy models list` names the models; write the right one to DFLASH_PAIR",
        "config.json, or the GGUF's header",
        why="memory, sizes and the drafter are planned for another model than would be served",
    )


@reads_checkpoints
def target_without_tokenizer(plan: Plan, facts: HostFacts) -> Finding | None:
    """Weights alone do not answer."""
    if plan.checkpoints.tokenizer is not False or "--tokenizer" in plan.settings.extra_args:
        return None
    return Finding(
        "target-without-tokenizer",
        "error",
        "the target comes without a tokenizer",
        "take it from the repository of the model that it was made from, or name it: EXTRA_ARGS=--tokenizer PATH",
        why="the engine ends while loading",
    )


@reads_checkpoints
def target_without_template(plan: Plan, facts: HostFacts) -> Finding | None:
    """Base models, and quantisers that leave files out."""
    if plan.checkpoints.template is not False or "--chat-template" in plan.settings.extra_args:
        return None
    return Finding(
        "target-without-template",
        "warning",
        "the target comes without a chat template",
        "take chat_template.jinja from the model that it was made from, or name one: EXTRA_ARGS=--chat-template PATH",
        "transformers: chat templates; llama.cpp falls back to ChatML",
        why="requests to /v1/chat/completions are refused, or asked in a form that the model never saw",
    )


@reads_checkpoints
def target_without_head(plan: Plan, facts: HostFacts) -> Finding | None:
    """Drafts of the target's own head, where its files have none: quantised forms often leave it out."""
    checkpoints = plan.checkpoints
    named = bool(stated(checkpoints.target).head_layers)
    if not plan.uses_mtp_head or checkpoints.target is None or (named and checkpoints.head is not False):
        return None
    lack = "its files hold no weights of one" if named else "its config.json has no mtp_num_hidden_layers"
    return Finding(
        "target-without-head",
        "error",
        f"DFLASH_DRAFTER=mtp, and the target has no head for multi-token prediction: {lack}",
        "name a drafter in DFLASH_DRAFTER, or take a form of the target that kept its head",
        "vLLM config/speculative.py, model_executor/models/qwen3_5_mtp.py (0.32)",
        why="the engine does not start, or drafts with weights that nothing was loaded into",
    )


def drafter_named_twice(plan: Plan, facts: HostFacts) -> Finding | None:
    """Two directories for one drafter: the second is used, and the first is what was probably meant."""
    drafter, path = plan.settings.dflash_drafter, plan.settings.drafter_host_path
    bundled = plan.pair.drafter.bundled is not None
    same = drafter == path if is_directory(drafter) else bundled or _named_after(path, drafter)
    if not plan.drafting or same:
        return None
    return Finding(
        "drafter-named-twice",
        "error",
        f"DFLASH_DRAFTER={drafter}, but DRAFTER_HOST_PATH={path} says that its weights lie elsewhere",
        "empty DRAFTER_HOST_PATH, or write the same directory into both",
        why="the second is what is used",
    )


def _named_after(path: str, repo: str) -> bool:
    """Whether a directory has a repository's name, with or without a revision behind it."""
    return Path(path).name.startswith(repo.rsplit("/", 1)[-1])


@reads_checkpoints
def drafter_of_another_target(plan: Plan, facts: HostFacts) -> Finding | None:
    """What target and drafter say of themselves, held against each other."""
    target, drafter = stated(plan.checkpoints.target), stated(plan.checkpoints.drafter)
    problem = next(_contradictions(target, drafter), None) if plan.drafting else None
    if problem is None:
        return None
    return Finding(
        "drafter-of-another-target",
        "error",
        problem,
        f"use the drafter that belongs to this target: {plan.pair.drafter.repo or plan.pair.drafter.bundled}",
        "vLLM qwen3_dflash.py: expects N concatenated aux hidden features; llama.cpp common/speculative.cpp",
        why="the engine ends while loading, or drafts what the target never accepts",
    )


def _contradictions(target: Stated, drafter: Stated) -> Iterator[str]:
    if target.hidden_size and drafter.hidden_size and target.hidden_size != drafter.hidden_size:
        yield f"the drafter was made for a hidden size of {drafter.hidden_size}, the target has {target.hidden_size}"
    if target.layers and drafter.deepest is not None and drafter.deepest >= target.layers:
        yield f"the drafter reads layer {drafter.deepest} of a target that has {target.layers}"
    # vLLM takes a vocabulary that is padded (vllm-project/vllm#46435)
    if target.vocabulary and drafter.vocabulary and abs(target.vocabulary - drafter.vocabulary) > 1024:
        yield f"the drafter has a vocabulary of {drafter.vocabulary}, the target of {target.vocabulary}"
    # of the same length: another length is padding, or told above
    both = target.tokens is not None and drafter.tokens is not None and target.vocabulary == drafter.vocabulary
    if both and target.tokens != drafter.tokens:
        yield "the tokens of the drafter's vocabulary are not those of the target's"


@reads_checkpoints
def positions_differ(plan: Plan, facts: HostFacts) -> Finding | None:
    """A drafter that counts positions in another way than its target."""
    target, drafter = stated(plan.checkpoints.target), stated(plan.checkpoints.drafter)
    if not plan.drafting or target.rope_theta is None or drafter.rope_theta is None:
        return None
    if target.stretched and not drafter.stretched:
        seen = "the target's positions are scaled (YaRN or its kin), the drafter's are not"
    elif target.rope_theta != drafter.rope_theta:
        seen = f"the drafter's rope_theta is {drafter.rope_theta:g}, the target's {target.rope_theta:g}"
    else:
        return None
    return Finding(
        "positions-differ",
        "note",
        seen,
        "measure acceptance at the length of your own prompts",
        "config.json of both; vLLM builds the drafter's positions from its own (qwen3_dflash.py)",
        why="a drafter may have been trained so; where it was not, acceptance falls with the length of the context",
    )


@reads_checkpoints
def context_beyond_drafter_config(plan: Plan, facts: HostFacts) -> Finding | None:
    """vLLM drafts nothing beyond the drafter's own limit of positions."""
    length, most = plan.settings.max_model_len, stated(plan.checkpoints.drafter).context
    if not plan.drafting or length is None or most is None or length <= most:
        return None
    return Finding(
        "context-beyond-drafter-config",
        "warning",
        f"MAX_MODEL_LEN={length}, and the drafter's own files allow {most} positions",
        f"set MAX_MODEL_LEN={most} or less, or live without drafts beyond",
        "vLLM config/speculative.py: the drafter's length is the smaller of both",
        why="tokens beyond that are decoded without drafts",
    )


RULES: tuple[Rule, ...] = (
    weights_of_another_model,
    target_of_another_model,
    target_without_tokenizer,
    target_without_template,
    target_without_head,
    drafter_named_twice,
    drafter_of_another_target,
    positions_differ,
    context_beyond_drafter_config,
)
