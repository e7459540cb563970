"""The router's engines in a cluster: the ready pods of a namespace, asked of Kubernetes every second.

SMG's own discovery of pods gives an engine no key either, and asks it for its models without one (SMG 1.13: it tries
/v1/models, /version and /server_info, all of which are closed). With a key of its own, SMG refuses those of clients. So
the pods become `workers.json`, as the launcher writes it on one machine.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dflash_deploy.serve.router.files import MANIFEST, RoutedEngine, manifest_of, replace

SELECTOR = "DFLASH_ROUTER_PODS"
"""The variable with the label selector of the engines' pods. Without it, the launcher writes the engines."""

ENGINE_PORT = 8000
"""The port of an engine in its pod."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has the token of its service account, the namespace, and the certificate of Kubernetes."""

HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""The variables with the address of Kubernetes, in each pod."""

EVERY = 1.0
ANSWERS = 5.0
"""Seconds between two questions, and for one answer."""

MOST_PODS = 200
"""Running pods of one list. A router has at most 64 engines, and as many again may be about to end."""

MOST_BYTES = 16 << 20

Ask = Callable[[], Any]
"""Asks for the list of pods, and returns its JSON. Raises OSError, HTTPException and ValueError."""


def engines_of(document: Mapping[str, Any], models: tuple[str, ...]) -> tuple[RoutedEngine, ...]:
    """The engines of a list of pods: those that are ready, and not about to end.

    Raises ValueError if the list is a part, and KeyError, TypeError and AttributeError if it is not one of pods.
    """
    if document.get("metadata", {}).get("continue"):
        raise ValueError(f"more than {MOST_PODS} pods have the labels of the engines")
    return tuple(sorted(_engines(document, models), key=lambda engine: engine.id))


def _engines(document: Mapping[str, Any], models: tuple[str, ...]) -> Iterator[RoutedEngine]:
    for pod in document["items"]:
        about, status = pod["metadata"], pod.get("status", {})
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
        address = status.get("podIP")
        if ready and address and "deletionTimestamp" not in about:
            host = f"[{address}]" if ":" in address else address
            yield RoutedEngine(str(about["name"]), f"http://{host}:{ENGINE_PORT}", models)


class PodWatcher:
    """Writes `workers.json` whenever the ready pods change. Without an answer, the engines of the last one stay."""

    def __init__(self, directory: Path, ask: Ask, models: tuple[str, ...]) -> None:
        self._file = directory / MANIFEST
        self._ask = ask
        self._models = models
        self._written: tuple[RoutedEngine, ...] | None = None
        self._said = ""

    def run(self) -> None:
        """Follow the pods for as long as the process runs."""
        while True:
            self.step()
            time.sleep(EVERY)

    def step(self) -> None:
        """Ask once, and write the engines if they changed. What fails is said once, and tried again the next time."""
        try:
            engines = engines_of(self._ask(), self._models)
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as problem:
            self._say(f"Kubernetes does not list the engines: {type(problem).__name__}: {problem}")
            return
        try:
            if engines != self._written:
                replace(self._file, manifest_of(engines))
                self._written = engines
        except OSError as problem:
            self._say(f"the list of engines cannot be written: {type(problem).__name__}: {problem}")
            return
        self._said = ""

    def _say(self, text: str) -> None:
        if text != self._said:
            print(f"dflash: {text}", file=sys.stderr, flush=True)
        self._said = text


def asker(environment: Mapping[str, str], account: Path) -> Ask:
    """A function that asks Kubernetes for the pods of this pod's own namespace."""

    def ask() -> Any:
        # both change while the process runs
        token = (account / "token").read_text(encoding="utf-8").strip()
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        # evicted pods stay in the list, and would fill it
        running = quote("status.phase=Running", safe="")
        query = f"labelSelector={quote(environment[SELECTOR], safe='')}&fieldSelector={running}&limit={MOST_PODS}"
        connection = HTTPSConnection(
            environment[HOST], int(environment.get(PORT, "443")), timeout=ANSWERS, context=context
        )
        try:
            connection.request("GET", f"{path}?{query}", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            text = answer.read(MOST_BYTES)
            if answer.status != 200:
                raise ValueError(f"it answers with {answer.status}")
            return json.loads(text)
        finally:
            connection.close()

    return ask


def follow_pods(directory: Path, environment: Mapping[str, str], models: tuple[str, ...]) -> None:
    """Keep `workers.json` the ready pods, in a thread that ends with the process."""
    watcher = PodWatcher(directory, asker(environment, ACCOUNT), models)
    threading.Thread(target=watcher.run, name="pods", daemon=True).start()
