"""What in a folder differs from a fresh export is named value by value."""

from dflash_deploy.features.export.folder import Difference, differences

PLAN = {
    "base/settings.yaml": "data: {A: '1', B: '2'}\n",
    "base/pods.yaml": "args: [a, b]\nreplicas: 1\n",
    "README.md": "read\n",
}


def test_the_same_texts_differ_in_nothing() -> None:
    assert differences(PLAN, PLAN) == ()


def test_each_value_is_named() -> None:
    folder = {
        **PLAN,
        "base/settings.yaml": "data: {A: '1', B: '3', C: '4'}\n",
        "base/pods.yaml": "args: [a]\nreplicas: '1'\n",
    }
    assert differences(folder, PLAN) == (
        Difference("base/pods.yaml", "args[1]", "missing", "b"),
        Difference("base/pods.yaml", "replicas", "1", "1"),
        Difference("base/settings.yaml", "data.B", "3", "2"),
        Difference("base/settings.yaml", "data.C", "4", "missing"),
    )


def test_files_of_one_side_are_named() -> None:
    assert differences({"old.yaml": "a: 1\n"}, {"new.yaml": "a: 1\n"}) == (
        Difference("new.yaml", "", "missing", "exists"),
        Difference("old.yaml", "", "exists", "missing"),
    )


def test_a_text_with_the_same_values_and_one_that_is_not_yaml_are_named() -> None:
    folder = {
        **PLAN,
        "base/pods.yaml": "# mine\n" + PLAN["base/pods.yaml"],
        "base/settings.yaml": "a: [\n",
        "README.md": "",
    }
    found = differences(folder, PLAN)
    assert [(one.file, one.place) for one in found] == [
        ("README.md", ""), ("base/pods.yaml", ""), ("base/settings.yaml", "")
    ]  # fmt: skip
    assert found[1].folder == "another text"
    assert "line" in found[2].folder


def test_a_long_value_is_cut() -> None:
    (found,) = differences({"a.yaml": f"a: {'x' * 500}\n"}, {"a.yaml": "a: y\n"})
    assert len(found.folder) == 121
