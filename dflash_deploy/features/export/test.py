"""`export test`: checks of each pod of an exported deployment and of its Service; whether all are the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.checks.check import CheckResult, unknown_endpoint
from dflash_deploy.checks.lossless import CANDIDATES, tokens_of
from dflash_deploy.checks.replicas import ReplicaAnswer, compared, same_answers, same_values
from dflash_deploy.checks.run import QUICK, CheckReport
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint, check_answering
from dflash_deploy.deployment.dotenv import parse
from dflash_deploy.errors import BadInput, DeployError, EngineNotReady
from dflash_deploy.features.export.kube import Kubectl, Pod, PodForward, image_of, settings_of
from dflash_deploy.features.export.pods import CONTAINER, KEYS_IN_SECRET
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.operations.test import Tested, check_names, first_model, run_shown
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.serve.api_keys import KEY
from dflash_deploy.serve.settings import Settings

DRAFTS = "drafts"
"""The check that measures the acceptance length."""

ANSWER = 32
"""Tokens of the answer that is compared."""

SETTINGS = "dflash.dev/settings"
"""The annotation with the digest of the settings."""


@dataclass
class _Seen:
    """What was found so far."""

    checks: list[CheckResult] = field(default_factory=list)
    lengths: dict[str, float] = field(default_factory=dict)
    answers: dict[str, ReplicaAnswer] = field(default_factory=dict)
    model: str = ""


def test_kubernetes(
    namespace: str,
    *,
    name: str = "",
    key: Secret | None = None,
    only: Collection[str] = (),
    reporter: Reporter = SILENT,
) -> Tested:
    """Check the pods of an exported deployment in a namespace, one after the other, then its Service.

    `only` names the checks; else the quick ones run, and `drafts` on each pod. Then the pods are compared: image,
    settings, acceptance length, a greedy answer. `name` is that of the export, if the namespace has several. The key is
    read from the Secret if none is given, else from VLLM_API_KEY of this process. Raises BadInput, EngineMissing
    without kubectl, PreflightRefused without access, EngineNotReady if no pod is ready or a forward ends.
    """
    names = check_names(only, compared=False)
    kubectl = Kubectl(namespace)
    pods = _chosen(kubectl.pods(), name, namespace)
    engines = [pod for pod in pods if pod.label("component") == CONTAINER]
    ready = [pod for pod in engines if not pod.unready]
    instance = pods[0].label("instance")
    if not ready:
        listed = ", ".join(f"{pod.name} {pod.unready}" for pod in engines) or "it has no engine"
        raise EngineNotReady(
            f"no engine of {instance} in {namespace} is ready: {listed}",
            hint=f"see why with `kubectl describe pods --namespace {namespace}`",
        )
    known = key or _key_of(kubectl, ready[0])
    seen = _Seen([_unready(pod, namespace) for pod in engines if pod.unready])
    for check in seen.checks:
        reporter.checked(check)
    for pod in ready:
        with kubectl.forward(f"pod/{pod.name}") as forward:
            _examine(forward, pod.name, known, names or {*QUICK, DRAFTS}, seen, reporter, replica=True)
    with kubectl.forward(f"service/{instance}") as forward:
        _examine(forward, "service", known, names or set(QUICK), seen, reporter, replica=False)
    for check in _compared(ready, seen, f"kubectl delete pod --namespace {namespace} POD"):
        reporter.checked(check)
        seen.checks.append(check)
    where = f"service/{instance} in {namespace}"
    return Tested(where, seen.model, None, CheckReport(tuple(seen.checks)), Redactor([known]), seen.lengths)


def _chosen(pods: tuple[Pod, ...], name: str, namespace: str) -> tuple[Pod, ...]:
    """The pods of one export. Raises BadInput if the namespace has several, EngineNotReady if it has none."""
    names = sorted({pod.label("instance") for pod in pods})
    if name:
        pods = tuple(pod for pod in pods if pod.label("instance") == name)
    elif len(names) > 1:
        raise BadInput(
            f"{namespace} has several deployments: {', '.join(names)}",
            hint=f"choose one with --name, such as --name {names[0]}",
        )
    if not pods:
        raise EngineNotReady(
            f"{namespace} has no pods of {name or 'dflash-deploy'}",
            hint="apply the folder of `dflash-deploy export kubernetes`, or name another namespace"
            + (f"; it has {', '.join(names)}" if names else ""),
        )
    return pods


def _key_of(kubectl: Kubectl, pod: Pod) -> Secret:
    """The API key of the pods' Secret, else that of the environment. Raises BadInput if there is none."""
    setting = Settings.vllm_api_key.name
    text = kubectl.secret(pod.keys_secret, KEYS_IN_SECRET) if pod.keys_secret else None
    found = (parse(text.reveal()).get(setting, "") if text is not None else "") or os.environ.get(setting, "")
    if not KEY.fullmatch(found):
        raise BadInput(
            f"the API key is unknown: this login may not read the Secret {pod.keys_secret or 'of the pods'}, or it has "
            "no key",
            hint=f"name a file with the key: --key-file FILE, or set {setting} for this command",
        )
    return Secret(found)


def _unready(pod: Pod, namespace: str) -> CheckResult:
    hint = f"see why with `kubectl describe pod --namespace {namespace} {pod.name}`"
    return CheckResult(f"{pod.name}: ready", "failed", 0.0, "the pod's conditions", pod.unready, hint)


def _examine(
    forward: PodForward, who: str, key: Secret, names: set[str], seen: _Seen, reporter: Reporter, *, replica: bool
) -> None:
    """Run the checks through a forward; of a replica also ask for the answer that is compared."""
    redact = Redactor([key])
    try:
        with Endpoint(forward.url, key, "") as nameless:
            check_answering(nameless, hint=f"see its log: `{forward.logs}`", redact=redact)
            seen.model = seen.model or first_model(nameless, redact)
    except DeployError:
        forward.check(failed=True)
        raise
    with Endpoint(forward.url, key, seen.model) as endpoint:
        subject = unknown_endpoint(endpoint, load_catalog())
        done = run_shown(subject, names, redact, reporter, None, who=f"{who}: ")
        checks = [replace(check, name=f"{who}: {check.name}") for check in done.report.checks]
        if replica and done.acceptance_length is not None:
            seen.lengths[who] = done.acceptance_length
        if replica:
            try:
                asked = {"max_tokens": ANSWER, "logprobs": True, "top_logprobs": CANDIDATES}
                seen.answers[who] = ReplicaAnswer(tokens_of(endpoint.chat(subject.questions.long, **asked)))
            except EndpointError as problem:
                hint = f"see its log: `{forward.logs}`"
                got = redact(str(problem))
                checks.append(CheckResult(f"{who}: answer", "failed", 0.0, "a greedy answer", got, hint))
    forward.check(failed=any(check.status == "failed" for check in checks))
    seen.checks += checks


def _compared(pods: list[Pod], seen: _Seen, restart: str) -> list[CheckResult]:
    """Whether the pods are the same; nothing to compare with a single one."""
    if len(pods) < 2:
        return []
    hint = f"`{restart}` replaces it"
    found = [
        same_values("same image", "the image", {pod.name: image_of(pod, CONTAINER) for pod in pods}, hint),
        same_values("same settings", "the settings", {pod.name: _settings(pod) for pod in pods}, hint),
    ]
    if len(seen.answers) > 1:
        found.append(same_answers(seen.answers, f"it may have other weights; {hint}"))
    if len(seen.lengths) > 1:
        found.append(compared(seen.lengths, hint))
    return found


def _settings(pod: Pod) -> str:
    """The digest of the settings, and one of what the container was created with."""
    text = json.dumps(settings_of(pod, CONTAINER), sort_keys=True)
    return f"{pod.metadata.annotations.get(SETTINGS, 'unknown')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
