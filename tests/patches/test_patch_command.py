"""``patch`` lists, judges, applies and reverts, and touches nothing that was not asked for."""

import json

import pytest

from sglang_mi300a.cli.main import main
from sglang_mi300a.patches import change
from tests.patches import trees

NAMES = [patch.name for patch in trees.SERIES.patches]


@pytest.fixture
def root(tmp_path):
    return trees.small(tmp_path / "site-packages")


@pytest.fixture
def say(capsys):
    def run(*words):
        code = main(["patch", *map(str, words)])
        return code, capsys.readouterr()

    return run


def statuses(out):
    return {row["name"]: row["status"] for row in json.loads(out)["patches"]}


def test_list_tells_every_patch_with_its_reason(say):
    code, said = say("list")
    assert code == 0
    for patch in trees.SERIES.patches:
        assert patch.why in said.out
        assert patch.remove_when in said.out
    rows = json.loads(say("list", NAMES[1], "--json")[1].out)["patches"]
    assert [row["name"] for row in rows] == [NAMES[1]]
    assert rows[0]["touches"]["sglang/cli/serve.py"].keys() == {"before", "after"}


def test_a_patch_is_applied_to_the_given_sglang_and_reverted(root, say):
    installed = {path: (trees.INSTALLED / path).read_bytes() for path in trees.TOUCHED}
    assert say("apply", NAMES[0], "--sglang", root)[0] == 0
    code, said = say("check", "--sglang", root / "sglang", "--json")
    assert code == 0
    assert statuses(said.out) == dict.fromkeys(NAMES, "not applied") | {NAMES[0]: "applied"}
    code, said = say("revert", "--sglang", root)
    assert (code, f"reverted {NAMES[0]} in" in said.out) == (0, True)
    assert not any(trees.is_patched(root).values())
    assert installed == {path: (trees.INSTALLED / path).read_bytes() for path in trees.TOUCHED}


def test_check_names_what_does_not_fit_and_exits_1(root, say):
    (root / "sglang/cli/serve.py").write_text("# another\n")
    code, said = say("check", "--sglang", root)
    assert code == 1
    assert f"does not fit  {NAMES[1]}" in said.out
    assert "sglang/cli/serve.py: found sha256 " in said.out
    code, said = say("apply", "--all", "--sglang", root)
    assert code == 2
    assert not any(trees.is_patched(root, without="sglang/cli/serve.py").values())


def test_check_names_a_half_applied_state_and_exits_1(root, say):
    (root / "sglang" / change.JOURNAL).write_text(
        json.dumps({"action": "apply", "patches": NAMES[:2]})
    )
    code, said = say("check", "--sglang", root)
    assert code == 1
    assert f"half applied: apply of {NAMES[0]}, {NAMES[1]} did not end" in said.out
    code, said = say("check", "--sglang", root, "--json")
    assert json.loads(said.out)["interrupted"] == {"action": "apply", "patches": NAMES[:2]}
    assert say("revert", "--sglang", root)[0] == 0
    assert say("check", "--sglang", root)[0] == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["apply"], "no name"),
        (["apply", "other"], "no patch of this name"),
        (["check", "--sglang", "nowhere"], "neither a wheel nor a directory"),
    ],
)
def test_a_wrong_use_exits_2_and_says_what_is_allowed(words, found, say):
    code, said = say(*words)
    assert code == 2
    assert found in said.err


def test_a_wheel_is_not_patched(tmp_path, say):
    (tmp_path / "sglang-0.5.18-py3-none-any.whl").write_bytes(b"PK")
    code, said = say("apply", "--all", "--sglang", tmp_path / "sglang-0.5.18-py3-none-any.whl")
    assert code == 2
    assert "found a wheel" in said.err
