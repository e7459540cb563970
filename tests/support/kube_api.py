"""A scripted API server for the real kubectl: pods, a Service, a Secret, and port-forwards to engines of this machine.

Discovery and objects are as in Kubernetes. A port-forward speaks SPDY, to which kubectl falls back from a WebSocket.
"""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.serving import Quiet, listening
from tests.support.spdy import FIN, PING, SYN_STREAM, Frame, Session

NAMESPACE = "vision"
ENGINE, ROUTER = "engine", "router"


@dataclass
class KubePod:
    """A pod, and the port of this machine that answers for it; without one its forwards end."""

    name: str
    port: int | None
    component: str = ENGINE
    instance: str = "dflash"
    image: str = "registry.example.com/vllm@sha256:" + "1" * 64
    settings: str = "0123456789abcdef"
    env: tuple[str, ...] = ()
    ready: bool = True

    def document(self) -> dict[str, Any]:
        """The pod as Kubernetes shows it."""
        labels = {"name": "dflash-deploy", "instance": self.instance, "component": self.component}
        container = {
            "name": self.component,
            "image": "registry.example.com/vllm:1",
            "env": [{"name": name, "value": "1"} for name in self.env],
            "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "labels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()},
                "annotations": {"dflash.dev/settings": self.settings},
            },
            "spec": {
                "containers": [container],
                "volumes": [{"name": "keys", "secret": {"secretName": f"{self.instance}-keys"}}],
            },
            "status": {
                "phase": "Running" if self.ready else "Pending",
                "conditions": [{"type": "Ready", "status": str(self.ready)}],
                "containerStatuses": [{"name": self.component, "imageID": self.image, "ready": self.ready}],
            },
        }


@dataclass
class KubeApi:
    """What the server has. `readable`: the login may read Secrets. `forwards`: it may forward ports."""

    pods: list[KubePod] = field(default_factory=list)
    dotenv: str = ""
    readable: bool = True
    forwards: bool = True
    ends_after: int | None = None
    """Connections after which a forward is cut off."""
    config: Path = Path()
    asked: list[str] = field(default_factory=list)

    def selected(self, selector: str) -> list[dict[str, Any]]:
        """The pods with these labels."""
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        found = (pod.document() for pod in self.pods)
        return [one for one in found if wanted.items() <= one["metadata"]["labels"].items()]


def _resource(name: str, kind: str, *verbs: str) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}


RESOURCES = [
    _resource("pods", "Pod", "get", "list"),
    _resource("pods/portforward", "PodPortForwardOptions", "create", "get"),
    _resource("services", "Service", "get", "list"),
    _resource("secrets", "Secret", "get"),
]


@contextmanager
def kube_api(place: Path, *pods: KubePod, key: str = "", **options: Any) -> Iterator[KubeApi]:
    """A server with these pods; `config` is the kubeconfig with which kubectl finds it."""
    api = KubeApi(list(pods), dotenv=f"VLLM_API_KEY={key}\n", **options)

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            api.asked.append(self.path)
            if self.headers.get("Upgrade", "").lower() == "websocket":
                self._refused(400, "BadRequest", "no WebSockets here")
                return
            found = _answer(api, address.path, parse_qs(address.query))
            if isinstance(found, tuple):
                self._refused(*found)
            else:
                self._json(200, found)

        def do_POST(self) -> None:
            api.asked.append(self.path)
            name = self.path.split("/pods/")[-1].split("/")[0]
            pod = next(one for one in api.pods if one.name == name)
            if not api.forwards:
                self._refused(403, "Forbidden", f'pods "{name}" is forbidden: User "eve" cannot create portforward')
                return
            self.send_response(101)
            for header, value in {
                "Connection": "Upgrade",
                "Upgrade": "SPDY/3.1",
                "X-Stream-Protocol-Version": "portforward.k8s.io",
            }.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.flush()
            PortForward(self.connection, pod.port, api.ends_after).run()
            self.close_connection = True

        def _json(self, status: int, document: object) -> None:
            self.send(status, "application/json", json.dumps(document).encode())

        def _refused(self, status: int, reason: str, message: str) -> None:
            about = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            self._json(status, {**about, "message": message, "reason": reason, "code": status})

    with listening(Handler) as url:
        api.config = place / "kubeconfig"
        context = {"cluster": "scripted", "user": "scripted"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "scripted", "cluster": {"server": url}}],
            "users": [{"name": "scripted", "user": {}}],
            "contexts": [{"name": "scripted", "context": context}],
            "current-context": "scripted",
        }
        api.config.write_text(yaml.safe_dump(document))
        yield api


Refusal = tuple[int, str, str]


def _answer(api: KubeApi, path: str, query: dict[str, list[str]]) -> dict[str, Any] | Refusal:
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}
        case ["api", "v1"]:
            return {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES}
        case ["api", "v1", "namespaces", _, "pods"]:
            items = api.selected(query.get("labelSelector", [""])[0])
            first = int(query.get("continue", ["0"])[0])
            last = first + int(query.get("limit", [len(items)])[0])
            more = {"continue": str(last)} if last < len(items) else {}
            return {"kind": "PodList", "apiVersion": "v1", "metadata": more, "items": items[first:last]}
        case ["api", "v1", "namespaces", _, "pods", name]:
            return next((one.document() for one in api.pods if one.name == name), (404, "NotFound", "no pod"))
        case ["api", "v1", "namespaces", _, "services", name]:
            return _service(api, name)
        case ["api", "v1", "namespaces", _, "secrets", name] if api.readable:
            data = {"dotenv": base64.b64encode(api.dotenv.encode()).decode()}
            return {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}, "data": data}
        case ["api", "v1", "namespaces", _, "secrets", name]:
            return 403, "Forbidden", f'secrets "{name}" is forbidden'
        case _:
            return 404, "NotFound", "the server could not find the requested resource"


def _service(api: KubeApi, name: str) -> dict[str, Any]:
    component = ROUTER if any(pod.component == ROUTER for pod in api.pods) else ENGINE
    labels = {"name": "dflash-deploy", "instance": name, "component": component}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.0.0.1",
            "selector": {f"app.kubernetes.io/{key}": value for key, value in labels.items()},
            "ports": [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}],
        },
    }


class PortForward:
    """One port-forward: two streams for each connection, of which `error` stays silent."""

    def __init__(self, connection: socket.socket, port: int | None, ends_after: int | None) -> None:
        self._connection = connection
        self._session = Session(connection)
        self._port = port
        self._left = ends_after
        self._engines: dict[int, socket.socket] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve it until kubectl ends, or it is cut off."""
        with suppress(OSError):
            for frame in self._session.frames():
                if frame.kind == SYN_STREAM and not self._opened(frame):
                    break
                if frame.kind == PING:
                    with self._lock:
                        self._session.answer_ping(frame)
                if frame.kind == 0 and frame.stream in self._engines:
                    self._sent(self._engines[frame.stream], frame)
        for engine in self._engines.values():
            engine.close()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _opened(self, frame: Frame) -> bool:
        """Take a stream; False if this forward ends with it."""
        kind = self._session.headers(frame)["streamtype"]
        with self._lock:
            self._session.accept(frame.stream)
            if kind == "error":
                self._session.send(frame.stream, b"", last=True)
                return True
        if self._port is None or self._left == 0:
            return False
        self._left = None if self._left is None else self._left - 1
        engine = self._engines[frame.stream] = socket.create_connection(("127.0.0.1", self._port))
        threading.Thread(target=self._back, args=(frame.stream, engine), daemon=True).start()
        return True

    def _back(self, stream: int, engine: socket.socket) -> None:
        with suppress(OSError):
            while data := engine.recv(65536):
                with self._lock:
                    self._session.send(stream, data)
        with suppress(OSError), self._lock:
            self._session.send(stream, b"", last=True)

    @staticmethod
    def _sent(engine: socket.socket, frame: Frame) -> None:
        with suppress(OSError):
            if frame.body:
                engine.sendall(frame.body)
            if frame.flags & FIN:
                engine.shutdown(socket.SHUT_WR)
