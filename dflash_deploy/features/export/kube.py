"""The pods of an exported deployment, through the user's own kubectl: its context, its login, its port-forward.

The documents of Kubernetes are read as far as `export test` needs them. No argument has a key: a Secret is read
from kubectl's output, and stays in memory.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import Field

from dflash_deploy.errors import BadInput, EngineMissing, EngineNotReady, PreflightRefused
from dflash_deploy.host.ask import ask
from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.parse import Invalid, printable
from dflash_deploy.redact import Secret

LABEL = "app.kubernetes.io/"
"""What the names of the recommended labels begin with."""

PAGE = 200
"""Pods of one answer of Kubernetes, which says how to ask for the next ones."""

Texts = Annotated[dict[str, str], Field(default_factory=dict)]
Some = Annotated[list[dict[str, Any]], Field(max_length=200)]


class Condition(ForeignDocument):
    """One condition of a pod."""

    type: str
    status: str


class ContainerStatus(ForeignDocument):
    """What runs in a container."""

    name: str
    image_id: Annotated[str, Field(alias="imageID")] = ""


class PodStatus(ForeignDocument):
    """The state of a pod."""

    phase: str = "Unknown"
    conditions: Annotated[list[Condition], Field(default_factory=list)]
    containers: Annotated[list[ContainerStatus], Field(alias="containerStatuses", default_factory=list)]


class PodMetadata(ForeignDocument):
    """Name, labels and annotations."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    labels: Texts
    annotations: Texts
    ends: Annotated[str | None, Field(alias="deletionTimestamp")] = None


class PodSpec(ForeignDocument):
    """What a pod was created with, as far as replicas have it in common."""

    containers: Some
    volumes: Annotated[Some, Field(default_factory=list)]


class Pod(ForeignDocument):
    """A pod."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    def label(self, name: str) -> str:
        """A label of those that Kubernetes recommends, such as `instance`; empty without it."""
        return self.metadata.labels.get(f"{LABEL}{name}", "")

    @property
    def unready(self) -> str:
        """Why it gets no requests; empty if it is ready."""
        if self.metadata.ends:
            return "it is about to end"
        ready = any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)
        return "" if ready else f"{printable(self.status.phase)}, not ready"

    @property
    def keys_secret(self) -> str:
        """The Secret with the API keys that it mounts; empty without one."""
        mounted = (one.get("secret") for one in self.spec.volumes if one.get("name") == "keys")
        return next((str(one.get("secretName") or "") for one in mounted if isinstance(one, dict)), "")


class ListMetadata(ForeignDocument):
    """What a list says of itself: `more` is the token for the pods behind it, empty at its end."""

    more: Annotated[str, Field(alias="continue", max_length=8192)] = ""


class PodList(ForeignDocument):
    """A list of pods, or a page of it."""

    metadata: Annotated[ListMetadata, Field(default_factory=ListMetadata)]
    items: Annotated[list[Pod], Field(max_length=PAGE)]


class SecretDocument(ForeignDocument):
    """A Secret; its values are in base64."""

    data: Texts


def settings_of(pod: Pod, container: str) -> Mapping[str, Any]:
    """What a pod's container was created with, except its name and image."""
    found = next((one for one in pod.spec.containers if one.get("name") == container), {})
    return {key: value for key, value in found.items() if key not in {"name", "image"}}


def image_of(pod: Pod, container: str) -> str:
    """The digest of the image that a container runs; its name if Kubernetes does not say."""
    running = next((one.image_id for one in pod.status.containers if one.name == container), "")
    named = next((str(one.get("image", "")) for one in pod.spec.containers if one.get("name") == container), "")
    return running or named


T = TypeVar("T", bound=ForeignDocument)

KUBECTL = "kubectl"
OURS = f"{LABEL}name=dflash-deploy"
"""The label of everything that `export kubernetes` writes."""

PORT = 8000
"""The port of the pods and of the Service."""

ANSWERS, FORWARDS = 20.0, 30.0
"""Seconds for an answer of Kubernetes, and until a forward listens."""

ENDS = 2.0
"""Seconds in which kubectl notices that a pod is gone."""

MOST_PAGES = 10
"""Pages of pods that are read."""

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LISTENS = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d{1,5}) ->")


@dataclass
class PodForward:
    """A running port-forward. `what` is the object in the namespace, such as `pod/dflash-1`."""

    namespace: str
    what: str
    url: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    @property
    def logs(self) -> str:
        """The command that prints the log of the object."""
        return f"kubectl logs --namespace {self.namespace} {self.what}"

    def check(self, *, failed: bool) -> None:
        """Raise EngineNotReady if it has ended: then answers are missing, and none says why.

        `failed`: something did. kubectl ends some time after it has lost the pod.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDS if failed else 0)
            raise _ended(self.namespace, self.what, self.errors)


@dataclass(frozen=True)
class Kubectl:
    """kubectl for one namespace, with the person's own context."""

    namespace: str

    def __post_init__(self) -> None:
        """Raises BadInput for what cannot be the name of a namespace."""
        if not _NAMESPACE.fullmatch(self.namespace):
            raise BadInput(
                f"`{printable(self.namespace)[:80]}` is not a valid namespace",
                hint="expected lower-case letters, digits and -, such as vision; `kubectl get namespaces` lists them",
            )

    def pods(self) -> tuple[Pod, ...]:
        """The pods of exported deployments, by name. Raises EngineMissing, and PreflightRefused also for too many."""
        found: list[Pod] = []
        query = {"labelSelector": OURS, "limit": str(PAGE)}
        for _ in range(MOST_PAGES):
            listed = _parsed(self._raw(f"pods?{urlencode(query)}"), PodList, "the list of pods")
            found += listed.items
            if not listed.metadata.more:
                return tuple(sorted(found, key=lambda pod: pod.name))
            query["continue"] = listed.metadata.more
        raise PreflightRefused(
            f"{self.namespace} has more than {len(found)} pods of exports",
            hint="apply the export to a namespace of its own, and name that one",
        )

    def secret(self, name: str, entry: str) -> Secret | None:
        """An entry of a Secret; `None` if this login may not read it, or it has none. Raises EngineMissing."""
        try:
            document = _parsed(self._raw(f"secrets/{quote(name, safe='')}"), SecretDocument, "the Secret")
            return Secret(base64.b64decode(document.data[entry], validate=True).decode())
        except (PreflightRefused, KeyError, binascii.Error, UnicodeDecodeError) as problem:
            if isinstance(problem, EngineMissing):
                raise
            return None

    def _raw(self, path: str) -> str:
        place = f"/api/v1/namespaces/{self.namespace}/{path}"
        done = ask(KUBECTL, "get", "--raw", place, f"--request-timeout={ANSWERS:.0f}s", timeout=2 * ANSWERS)
        if done.absent:
            raise _missing()
        if not done.good:
            raise PreflightRefused(
                f"kubectl: {done.problem or said_last(done.err)}",
                hint=f"check your context and login: `kubectl get pods --namespace {self.namespace}`",
            )
        return done.out

    @contextmanager
    def forward(self, what: str) -> Iterator[PodForward]:
        """Forward a free port of 127.0.0.1 to the port of a pod or a Service, for the time of the block.

        Raises EngineMissing, and EngineNotReady if kubectl ends or does not listen in time.
        """
        command = [KUBECTL, "port-forward", "--namespace", self.namespace, "--address", "127.0.0.1", what, f":{PORT}"]
        with tempfile.TemporaryFile() as errors:
            process = _started(command, errors)
            try:
                port = _port(process)
                if port is None:
                    _end(process)
                    raise _ended(self.namespace, what, errors)
                yield PodForward(self.namespace, what, f"http://127.0.0.1:{port}", process, errors)
            finally:
                _end(process)


def _started(command: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, bufsize=0
        )
    except FileNotFoundError:
        raise _missing() from None
    except OSError as problem:
        raise PreflightRefused(f"kubectl cannot be run: {problem.strerror}", hint="check its file and mode") from None


def _port(process: subprocess.Popen[bytes]) -> int | None:
    """The port on which kubectl listens, as it says itself; `None` if it does not."""
    said, ends, out = b"", time.monotonic() + FORWARDS, process.stdout
    while out is not None and (left := ends - time.monotonic()) > 0 and len(said) < 4096:
        if select.select([out], [], [], left)[0]:
            if not (more := os.read(out.fileno(), 4096)):
                break
            said += more
        if found := _LISTENS.search(said):
            return int(found[1])
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _ended(namespace: str, what: str, errors: IO[bytes]) -> EngineNotReady:
    errors.seek(0)
    said = said_last(errors.read(65536).decode("utf-8", "replace"))
    return EngineNotReady(
        f"kubectl's port-forward to {what} ended: {said}",
        hint=f"check the pod with `kubectl get pods --namespace {namespace}`, and that your login may create "
        "`pods/portforward`; then try again",
    )


def said_last(text: str) -> str:
    """Why kubectl ended, by what it printed as errors: its last line `error: …`, else its last line.

    Its other parts still log while it ends, so the reason is not always the last line: on a busy machine a line
    `E1124 05:30:09.555060 426 portforward.go:525] "Error copying from …` came after it.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(("error:", "Error from server"))]
    return printable((reasons or lines)[-1])[:300] if lines else "it says nothing"


def _missing() -> EngineMissing:
    return EngineMissing("kubectl is not installed, or not on the PATH", hint="https://kubernetes.io/docs/tasks/tools/")


def _parsed(text: str, kind: type[T], what: str) -> T:
    try:
        return read_document(text, kind)
    except Invalid as problem:
        raise PreflightRefused(
            f"kubectl: {what} {problem}", hint="check which server it asks: `kubectl config current-context`"
        ) from None
