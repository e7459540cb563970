"""Whether a tag exists, against a real registry, and against one that gives tokens."""

import hashlib
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import httpx
import pytest

from dflash_deploy.doctor.container import judge_tag
from dflash_deploy.runtime import registry as asked
from dflash_deploy.runtime.registry import Reference, ask_tag, nearest_tag
from tests.support.ports import free_port
from tests.support.registry import registry

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push(address: str, repository: str, *tags: str) -> None:
    """An image without layers, under these tags."""
    with httpx.Client(base_url=f"http://{address}/v2/{repository}", trust_env=False) as client:
        digest = f"sha256:{hashlib.sha256(b'{}').hexdigest()}"
        place = client.post("/blobs/uploads/").headers["location"]
        assert client.put(httpx.URL(place).copy_merge_params({"digest": digest}), content=b"{}").status_code == 201
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 2}
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []})
        for tag in tags:
            put = client.put(f"/manifests/{tag}", content=manifest, headers={"Content-Type": MANIFEST})
            assert put.status_code == 201, put.text


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as address:
        push(address, "vllm/vllm-openai", "v0.31.0", "v0.32.0", "v0.32.0-cu129", "latest", "v0.40.0")
        push(address, "llama.cpp", *(f"server-cuda-b{number}" for number in (11046, 11382, 11600)), "light-b11382")
        yield address


def test_a_tag_that_exists_is_found(address: str) -> None:
    assert ask_tag(f"{address}/vllm/vllm-openai:v0.32.0").exists
    check = judge_tag("x:1", ask_tag(f"{address}/vllm/vllm-openai"))
    assert (check.status, check.saw) == ("ok", f"{address} has x:1")


@pytest.mark.parametrize(
    ("image", "nearest"),
    [
        ("vllm/vllm-openai:v0.33.0", "v0.32.0"),
        ("vllm/vllm-openai:v0.33.0-cu129", "v0.32.0-cu129"),
        ("llama.cpp:server-cuda-b11434", "server-cuda-b11382"),
        ("llama.cpp:server-cuda-b9", "server-cuda-b11046"),
    ],
)
def test_a_tag_that_does_not_exist_gets_the_nearest_one_as_advice(address: str, image: str, nearest: str) -> None:
    wanted = f"{address}/{image}"
    answer = ask_tag(wanted)
    assert (answer.exists, answer.nearest) == (False, nearest)
    check = judge_tag(wanted, answer)
    assert check.status == "no"
    repository = wanted.rpartition(":")[0]
    assert check.fix == f"`dflash-deploy set DFLASH_BASE_IMAGE={repository}:{nearest}`"


def test_a_repository_that_the_registry_does_not_show_may_need_an_account(address: str) -> None:
    answer = ask_tag(f"{address}/private/image:1")
    assert answer.exists is None
    assert judge_tag("private/image:1", answer).status == "skipped"


def test_without_a_network_it_is_one_line() -> None:
    check = judge_tag("x:1", ask_tag(f"127.0.0.1:{free_port()}/x:1"))
    assert check.status == "skipped"
    assert "\n" not in check.saw
    assert ask_tag("registry.invalid/x:1").exists is None


class _Handler(BaseHTTPRequestHandler):
    """A registry that wants the token of its realm, and lists its tags on two pages."""

    server: "_Registry"

    def answer(self) -> None:
        place = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.answers.wait(20)
        if self.path.startswith("/token"):
            self.reply(200, {"access_token": "for-everybody"})
        elif self.headers.get("authorization") != "Bearer for-everybody":
            realm = f'Bearer realm="{self.server.realm or place}/token",service="here",scope="repository:o/n:pull"'
            self.reply(401, {}, WWW_Authenticate=realm)
        elif self.path.endswith("/manifests/v2"):
            self.reply(200, {})
        elif "/tags/" in self.path and "last" not in self.path:
            self.reply(
                200, {"tags": ["v1", "v2; reboot", "v3\x1b[2J"]}, Link='</v2/o/n/tags/list?last=v1&n=1000>; rel="next"'
            )
        else:
            self.reply(*((200, {"tags": ["v2"]}) if "/tags/" in self.path else (404, {})))

    def reply(self, status: int, body: object, **headers: str) -> None:
        content = json.dumps(body).encode()
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content if self.command != "HEAD" else b"")

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""

    do_GET = do_HEAD = answer  # noqa: N815 - the names that the server looks for


class _Registry(ThreadingHTTPServer):
    daemon_threads = True
    realm = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.answers = Event()
        self.answers.set()

    @property
    def image(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}/o/n"


@pytest.fixture
def guarded() -> Iterator[_Registry]:
    with _Registry() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_token_for_everybody_is_fetched_where_the_registry_says(guarded: _Registry) -> None:
    assert ask_tag(f"{guarded.image}:v2").exists
    assert guarded.asked[1] == "GET /token?service=here&scope=repository%3Ao%2Fn%3Apull"
    answer = ask_tag(f"{guarded.image}:v3")
    # from the second page, and none of the texts that no tag can be
    assert (answer.exists, answer.nearest) == (False, "v2")


def test_a_realm_on_another_protocol_is_not_asked(guarded: _Registry) -> None:
    guarded.realm = "file:///etc"
    assert ask_tag(f"{guarded.image}:v2").problem == "status 401"


def test_a_registry_that_does_not_answer_is_given_up(guarded: _Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "SECONDS", 0.2)
    guarded.answers.clear()
    started = time.monotonic()
    assert ask_tag(f"{guarded.image}:v2").exists is None
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("image", "url", "tag"),
    [
        ("ubuntu:24.04", "https://registry-1.docker.io/v2/library/ubuntu", "24.04"),
        ("vllm/vllm-openai", "https://registry-1.docker.io/v2/vllm/vllm-openai", "latest"),
        ("docker.io/vllm/vllm-openai:v1", "https://registry-1.docker.io/v2/vllm/vllm-openai", "v1"),
        ("ghcr.io/ggml-org/llama.cpp:server", "https://ghcr.io/v2/ggml-org/llama.cpp", "server"),
        ("nvcr.io/nvidia/vllm:26.10-py3", "https://nvcr.io/v2/nvidia/vllm", "26.10-py3"),
        ("localhost:5000/x:1", "http://localhost:5000/v2/x", "1"),
        ("a.b/x:1@sha256:00", "https://a.b/v2/x", "sha256:00"),
    ],
)
def test_a_name_is_read_as_docker_reads_it(image: str, url: str, tag: str) -> None:
    reference = Reference.of(image)
    assert (reference.url, reference.tag) == (url, tag)


def test_the_most_similar_tag_is_named_if_no_version_is_alike() -> None:
    assert nearest_tag("server-cuda", ["full", "server-cuda13", "light"]) == "server-cuda13"
