"""The pods of a namespace, which Kubernetes lists page by page."""

import json
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import pytest

from dflash_deploy.errors import PreflightRefused
from dflash_deploy.features.export import kube
from dflash_deploy.features.export.kube import MOST_PAGES, Kubectl
from dflash_deploy.host.ask import CommandOutput


def lists(monkeypatch: pytest.MonkeyPatch, pages: Sequence[Sequence[str]]) -> list[str]:
    """Let Kubernetes answer with these pages of names, one for each token; return the tokens that it was asked for."""
    tokens = []

    def ask(*command: str, timeout: float) -> CommandOutput:
        place = next(word for word in command if word.startswith("/api/"))
        tokens.append(parse_qs(urlsplit(place).query).get("continue", [""])[0])
        number = int(tokens[-1].removeprefix("a+/=") or 0)
        more = {"continue": f"a+/={number + 1}"} if number + 1 < len(pages) else {}
        items = [{"metadata": {"name": name}, "spec": {"containers": []}, "status": {}} for name in pages[number]]
        return CommandOutput(json.dumps({"metadata": more, "items": items}), code=0)

    monkeypatch.setattr(kube, "ask", ask)
    return tokens


def test_the_pods_of_all_pages_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = lists(monkeypatch, [["c", "a"], ["d"], ["b"]])
    assert [pod.name for pod in Kubectl("vision").pods()] == ["a", "b", "c", "d"]
    assert tokens == ["", "a+/=1", "a+/=2"]


def test_too_many_pods_are_refused_instead_of_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    lists(monkeypatch, [["a"]] * (MOST_PAGES + 1))
    with pytest.raises(PreflightRefused, match="vision has more than 10 pods of exports") as refused:
        Kubectl("vision").pods()
    assert "a namespace of its own" in (refused.value.hint or "")


LOGGED = "E1124 05:30:09.555060 426 portforward.go:525] error copying the stream"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (f"error: lost connection to pod\n{LOGGED}\n", "error: lost connection to pod"),
        (f"{LOGGED}\nerror: lost connection to pod\n", "error: lost connection to pod"),
        (
            f'{LOGGED}\nError from server (NotFound): pods "a" not found\n',
            'Error from server (NotFound): pods "a" not found',
        ),
        (f"{LOGGED}\n", LOGGED),
        ("\n", "it says nothing"),
    ],
)
def test_the_reason_of_an_end_is_told_though_kubectl_logged_beside_it(printed: str, reason: str) -> None:
    assert kube.said_last(printed) == reason
