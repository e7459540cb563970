"""Rules about weights: are they the planned ones, and do target and drafter match?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.command import is_directory
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.model_metadata import ModelMetadata, metadata_of
from dflash_deploy.plan.result import Finding, Plan
from dflash_deploy.rules.kinds import Rule, reads_checkpoints
from dflash_deploy.serve.engines.base import extra_flags
from dflash_deploy.serve.engines.vllm import TEXT_ONLY
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP

PROJECTOR = "clip"  # `general.architecture` of a vision projector (llama.cpp b11549, tools/mtmd/clip.cpp)

# Flags with which an engine serves only the language model of one with vision.
WITHOUT_VISION = frozenset({TEXT_ONLY, "--limit-mm-per-prompt"})

PADDING = 1024  # tokens by which vLLM lets a padded vocabulary differ from the other one (vllm-project/vllm#46435)


def weights_of_another_model(plan: Plan, facts: HostFacts) -> Finding | None:
    """The model was changed in `.env`, and the directory of its weights was not."""
    if not plan.weights_of or plan.pair.name in plan.weights_of:
        return None
    name, field = plan.pair.name, Settings.dflash_pair
    return Finding(
        id="weights-of-another-model",
        severity="error",
        message=f"{field}={name}, but {Settings.model_host_path} is named after {plan.weights_of[0]}",
        why="memory, parsers and rules are those of one model, and the engine serves another",
        fix=f"write {field}={plan.weights_of[0]}, or run `dflash-deploy models use {name}`",
    )


@reads_checkpoints
def target_of_another_model(plan: Plan, facts: HostFacts) -> Finding | None:
    """The target on disk has another hidden size than the planned one."""
    found, shape = metadata_of(plan.checkpoints.target), plan.pair.shape
    if found.hidden_size is None or found.hidden_size == shape.hidden_size:
        return None
    return Finding(
        id="target-of-another-model",
        severity="error",
        message=f"the target in {plan.settings.model_host_path} has a hidden size of {found.hidden_size}; "
        f"{plan.pair.family.title} has {shape.hidden_size}",
        why="memory, sizes and the drafter are planned for another model",
        fix=f"set the right model in {Settings.dflash_pair}; `dflash-deploy models list` shows the names",
        source="config.json, or the GGUF's header",
    )


@reads_checkpoints
def target_unknown_to_engine(plan: Plan, facts: HostFacts) -> Finding | None:
    """The target's GGUF has an architecture that the engine does not load as a language model."""
    kind, found = plan.engine.kind, (plan.checkpoints.target or {}).get("general.architecture")
    # a newer build may know more, but none loads a projector or a drafter as a target
    judged = plan.engine_version == kind.architectures_of or below(plan.engine_version, kind.architectures_of)
    if not isinstance(found, str) or not (
        found in {PROJECTOR, *plan.engine.drafters} or (judged and found not in kind.architectures)
    ):
        return None
    return Finding(
        id="target-unknown-to-engine",
        severity="error",
        message=f"the target's architecture is {found}, which {plan.engine_title} does not load as a language model",
        why="the engine ends with `unknown model architecture`",
        fix=f"name the target's own GGUF in {Settings.model_file}, or choose another model or engine: "
        "`dflash-deploy models list` shows which engine serves it",
        source="llama.cpp src/llama-arch.cpp",
    )


@reads_checkpoints
def projector_of_another_kind(plan: Plan, facts: HostFacts) -> Finding | None:
    """The file that is named as vision projector is another GGUF, such as the target's."""
    found, field = plan.checkpoints.projector, Settings.mmproj_file
    if found in {None, PROJECTOR}:
        return None
    return Finding(
        id="projector-of-another-kind",
        severity="error",
        message=f"{field}={plan.settings.mmproj_file} is not a vision projector: its architecture is {found}, "
        f"not {PROJECTOR}",
        why="the engine ends with `failed to load CLIP model`",
        fix=f"name the target's projector (mmproj-*.gguf), or empty {field} to serve texts only",
        source="general.architecture in the GGUF's header",
    )


@reads_checkpoints
def cache_instead_of_snapshot(plan: Plan, facts: HostFacts) -> Finding | None:
    """A model's folder in the cache of the Hugging Face Hub's client, in place of the snapshot in it."""
    field, snapshot = next(iter(plan.checkpoints.snapshots.items()), ("", ""))
    if not field:
        return None
    copied = f"copy the model with `cp -rL {snapshot} DIRECTORY`, and set {field}=DIRECTORY"
    return Finding(
        id="cache-instead-of-snapshot",
        severity="error",
        message=f"{field}={plan.values[field]} is a folder of the Hugging Face cache, and the model is in a snapshot",
        why="in the cache, the files of a model are links in snapshots/, which a container cannot follow",
        fix=f"set {field}={snapshot}" if plan.runtime == "native" else copied,
        source="huggingface_hub: cache structure",
    )


@reads_checkpoints
def target_without_processor(plan: Plan, facts: HostFacts) -> Finding | None:
    """A target with vision, without the file that says how images are prepared: quantized repositories leave it out."""
    node = plan.checkpoints.target or {}
    # others have a processor of their own in the engine
    usual = isinstance(node.get("vision_config"), dict) and (metadata_of(node).architecture or "").endswith(
        "ForConditionalGeneration"
    )
    if plan.checkpoints.processor is not False or not usual or WITHOUT_VISION & set(extra_flags(plan.settings)):
        return None
    return Finding(
        id="target-without-processor",
        severity="error",
        message="the target reads images, but has neither preprocessor_config.json nor processor_config.json",
        why="the engine ends while loading",
        fix="copy it from the repository of the model that the target was made from",
        source="transformers models/auto/image_processing_auto.py",
    )


@reads_checkpoints
def token_beyond_embedding(plan: Plan, facts: HostFacts) -> Finding | None:
    """A tokenizer that has more tokens than the target: one of another model, or with tokens added to it."""
    largest, rows = plan.checkpoints.largest_token, metadata_of(plan.checkpoints.target).vocabulary
    if largest is None or rows is None or largest < rows:
        return None
    return Finding(
        id="token-beyond-embedding",
        # a few tokens that no request has are in healthy models, such as the image token of Gemma 3 1B
        severity="error" if largest >= rows + PADDING else "warning",
        message=f"tokenizer.json has token {largest}, but the target has a vocabulary of {rows}, from 0",
        why="the engine has no values for such a token: a request with it fails, or ends the engine",
        fix="use the tokenizer of the repository that the weights are from",
        source="tokenizer.json and config.json",
    )


@reads_checkpoints
def target_without_tokenizer(plan: Plan, facts: HostFacts) -> Finding | None:
    """Weights without the files of a tokenizer."""
    if plan.checkpoints.tokenizer is not False or "--tokenizer" in plan.settings.extra_args:
        return None
    return Finding(
        id="target-without-tokenizer",
        severity="error",
        message="the target has no tokenizer",
        why="the engine ends while loading",
        fix="copy it from the repository of the model that the target was made from, or set "
        f"{Settings.extra_args}=--tokenizer PATH",
    )


@reads_checkpoints
def target_without_template(plan: Plan, facts: HostFacts) -> Finding | None:
    """No chat template: base models, and quantized repositories that leave files out."""
    if plan.checkpoints.template is not False or "--chat-template" in plan.settings.extra_args:
        return None
    return Finding(
        id="target-without-template",
        severity="warning",
        message="the target has no chat template",
        why="the engine refuses requests to /v1/chat/completions, or uses a format that the model was not trained on",
        fix="copy chat_template.jinja from the model that the target was made from, or set "
        f"{Settings.extra_args}=--chat-template PATH",
        source="transformers: chat templates; llama.cpp falls back to ChatML",
    )


@reads_checkpoints
def target_without_head(plan: Plan, facts: HostFacts) -> Finding | None:
    """The MTP head is chosen, and the target's files do not hold it: quantized repositories often leave it out."""
    checkpoints = plan.checkpoints
    configured = bool(metadata_of(checkpoints.target).head_layers)
    if not plan.uses_mtp_head or checkpoints.target is None or (configured and checkpoints.head is not False):
        return None
    lack = "its files hold no weights of one" if configured else "its config.json has no mtp_num_hidden_layers"
    field = Settings.dflash_drafter
    return Finding(
        id="target-without-head",
        severity="error",
        message=f"{field}={MTP}, but the target has no MTP head: {lack}",
        why="the engine does not start, or makes draft tokens with weights that were never loaded",
        fix=f"set a drafter in {field}, or use a quantization of the target that kept its MTP head",
        source="vLLM config/speculative.py, model_executor/models/qwen3_5_mtp.py (0.32)",
    )


def drafter_named_twice(plan: Plan, facts: HostFacts) -> Finding | None:
    """Two settings that name different drafters: the engine loads the directory."""
    drafter, path = plan.settings.dflash_drafter, plan.settings.drafter_host_path
    bundled = plan.pair.drafter.bundled is not None
    # a directory has the repository's name, with or without a revision after it
    named_after = Path(path).name.startswith(drafter.rsplit("/", 1)[-1])
    same = drafter == path if is_directory(drafter) else bundled or named_after
    if not plan.drafting or same:
        return None
    return Finding(
        id="drafter-named-twice",
        severity="error",
        message=f"{Settings.dflash_drafter}={drafter}, but {Settings.drafter_host_path}={path} names another directory",
        why=f"the engine loads the weights in {Settings.drafter_host_path}",
        fix=f"empty {Settings.drafter_host_path}, or set both to the same directory",
    )


@reads_checkpoints
def drafter_of_another_target(plan: Plan, facts: HostFacts) -> Finding | None:
    """Metadata of the drafter that contradicts the target's."""
    target, drafter = metadata_of(plan.checkpoints.target), metadata_of(plan.checkpoints.drafter)
    problem = next(_contradictions(target, drafter), None) if plan.drafting else None
    if problem is None:
        return None
    return Finding(
        id="drafter-of-another-target",
        severity="error",
        message=problem,
        why="the engine ends while loading, or the target never accepts a draft token",
        fix=f"use the drafter that belongs to this target: {plan.pair.drafter.repo or plan.pair.drafter.bundled}",
        source="vLLM qwen3_dflash.py: expects N concatenated aux hidden features; llama.cpp common/speculative.cpp",
    )


def _contradictions(target: ModelMetadata, drafter: ModelMetadata) -> Iterator[str]:
    if target.hidden_size and drafter.hidden_size and target.hidden_size != drafter.hidden_size:
        yield f"the drafter was made for a hidden size of {drafter.hidden_size}, the target has {target.hidden_size}"
    if target.layers and drafter.deepest_layer is not None and drafter.deepest_layer >= target.layers:
        yield f"the drafter reads layer {drafter.deepest_layer} of a target that has {target.layers}"
    if target.vocabulary and drafter.vocabulary and abs(target.vocabulary - drafter.vocabulary) > PADDING:
        yield f"the drafter has a vocabulary of {drafter.vocabulary}, the target of {target.vocabulary}"
    # digests are compared only for the same length: another length is padding, or reported above
    both = target.tokens is not None and drafter.tokens is not None and target.vocabulary == drafter.vocabulary
    if both and target.tokens != drafter.tokens:
        yield "the tokens of the drafter's vocabulary are not those of the target's"


@reads_checkpoints
def positions_differ(plan: Plan, facts: HostFacts) -> Finding | None:
    """A drafter that encodes positions differently from its target."""
    target, drafter = metadata_of(plan.checkpoints.target), metadata_of(plan.checkpoints.drafter)
    if not plan.drafting or target.rope_theta is None or drafter.rope_theta is None:
        return None
    if target.scaled_positions and not drafter.scaled_positions:
        found = "the target scales its positions (YaRN or similar), the drafter does not"
    elif target.rope_theta != drafter.rope_theta:
        found = f"the drafter's rope_theta is {drafter.rope_theta:g}, the target's {target.rope_theta:g}"
    else:
        return None
    return Finding(
        id="positions-differ",
        severity="note",
        message=found,
        why="unless the drafter was trained like this, acceptance falls with the length of the context",
        fix="measure the acceptance length with prompts as long as yours",
        source="config.json of both; vLLM builds the drafter's positions from its own (qwen3_dflash.py)",
    )


@reads_checkpoints
def context_beyond_drafter_config(plan: Plan, facts: HostFacts) -> Finding | None:
    """A context that exceeds the positions in the drafter's own files: SGLang refuses to start."""
    length, most = plan.settings.max_model_len, metadata_of(plan.checkpoints.drafter).context
    if not plan.drafting or length is None or most is None or length <= most:
        return None
    said = f"{Settings.max_model_len}={length}, but the drafter's files allow {most} positions"
    if plan.engine.kind.drafter_limits_context:
        return Finding(
            id="context-beyond-drafter-config",
            severity="error",
            message=said,
            why="the engine ends with `is greater than the derived context_length`",
            fix=f"set {Settings.max_model_len}={most} or less",
            source="SGLang 0.5.23 configs/model_config.py",
        )
    return Finding(
        id="context-beyond-drafter-config",
        severity="warning",
        message=said,
        why="the engine lowers the context, or drafts at positions that the drafter was not made for",
        fix=f"set {Settings.max_model_len}={most} or less, or accept the lower speed beyond it",
        source="vLLM 0.33.0 config/speculative.py and config/vllm.py",
    )


RULES: tuple[Rule, ...] = (
    weights_of_another_model,
    target_of_another_model,
    target_unknown_to_engine,
    projector_of_another_kind,
    cache_instead_of_snapshot,
    target_without_processor,
    token_beyond_embedding,
    target_without_tokenizer,
    target_without_template,
    target_without_head,
    drafter_named_twice,
    drafter_of_another_target,
    positions_differ,
    context_beyond_drafter_config,
)
