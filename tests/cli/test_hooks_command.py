"""``hooks check`` judges another SGLang without running it."""

import json
import shutil
import zipfile

import pytest

from sglang_mi300a import hook_fit, plugin
from sglang_mi300a.cli.main import main

TARGETS = sorted(
    {hook_fit.find(s.target, plugin.installed_sglang()).file for s in plugin.all_seams()}
)
PROFILE = "sglang/srt/mem_cache/kv_cache_configurator.py"


@pytest.fixture
def other_sglang(tmp_path):
    """A directory with the files of the installed SGLang that seams point into."""
    root = plugin.installed_sglang().root
    files = [*TARGETS, "sglang/_version.py", "sglang/version.py"]
    for name in files:
        if (root / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, tmp_path / name)
    return tmp_path


def edit(root, name, old, new):
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new, 1))


def check(path, capsys, *more):
    code = main(["hooks", "check", "--sglang", str(path), *more])
    return code, capsys.readouterr().out


def test_an_equal_sglang_fits_and_exits_0(other_sglang, capsys):
    code, out = check(other_sglang, capsys)
    assert code == 0
    assert "changed" not in out


def test_a_changed_body_exits_1_and_shows_the_difference(other_sglang, capsys):
    edit(other_sglang, PROFILE, "return int(rest_memory * (1 << 30))", "return int(rest_memory)")
    code, out = check(other_sglang, capsys)
    assert code == 1
    assert "changed  pools.planned_bytes" in out
    assert "-    return int(rest_memory * (1 << 30))" in out
    assert "+    return int(rest_memory)" in out


def test_a_moved_function_and_a_gone_module_are_told_apart(other_sglang, capsys):
    edit(other_sglang, PROFILE, "def _profile_available_bytes", "def _profile_bytes")
    gone = "sglang/srt/layers/moe/token_dispatcher/standard.py"
    (other_sglang / gone).unlink()
    code, out = check(other_sglang, capsys, "--json")
    by_name = {row["name"]: row["status"] for row in json.loads(out)["seams"]}
    assert code == 1
    assert by_name["pools.planned_bytes"] == "moved"
    assert by_name["moe.dispatch"] == "gone"


def test_a_flag_that_is_gone_is_found(other_sglang, capsys):
    file = "sglang/srt/server_args.py"
    text = (other_sglang / file).read_text()
    (other_sglang / file).write_text(text.replace("    max_mamba_cache_size: A[", "    other: A["))
    code, out = check(other_sglang, capsys)
    assert code == 1
    assert "ServerArgs.max_mamba_cache_size no such field" in out


def test_a_wheel_is_judged_as_a_directory_is(other_sglang, tmp_path, capsys):
    wheel = tmp_path / "sglang-0.5.18-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in other_sglang.rglob("*.py"):
            archive.write(path, path.relative_to(other_sglang))
    assert check(wheel, capsys)[0] == 0


def test_a_path_that_is_no_sglang_is_refused_with_exit_code_2(tmp_path, capsys):
    assert main(["hooks", "check", "--sglang", str(tmp_path)]) == 2
    assert "neither a wheel nor a directory" in capsys.readouterr().err


def test_list_prints_every_seam_with_why_and_when_it_goes(capsys):
    assert main(["hooks", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {seam.name for seam in plugin.all_seams()}
    assert main(["hooks", "list"]) == 0
    text = capsys.readouterr().out
    assert text.count("goes when") == len(rows)
