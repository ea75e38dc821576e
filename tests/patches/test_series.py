"""The shipped patches fit the supported SGLang and say why they are there."""

import ast
import json
import shutil
import subprocess

import pytest

from sglang_mi300a import shipped
from sglang_mi300a.errors import UserError
from sglang_mi300a.patches import change, fit, series, unified_diff
from sglang_mi300a.supported import fits
from tests import repository
from tests.patches import trees

PATCHES = trees.SERIES.patches
README = (repository.ROOT / "patches/README.md").read_text()


def test_patches_are_of_the_supported_sglang():
    assert fits(trees.SERIES.sglang, shipped.supported()["sglang"])


def test_none_is_applied_to_the_installed_sglang_and_all_fit_it():
    found = fit.judge(trees.SERIES, PATCHES, trees.INSTALLED)
    assert {one.patch.name: one.status for one in found} == {
        patch.name: "not applied" for patch in PATCHES
    }


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_every_patched_file_is_python_and_of_another_length(patch):
    for path, hunks in patch.changes.items():
        before = (trees.INSTALLED / path).read_text(encoding="utf-8")
        after = unified_diff.apply(before, hunks)
        assert ast.parse(after)
        # Python takes a compiled file for current by the source's length and second of writing.
        assert len(after.encode()) != len(before.encode())


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the same diffs here")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_git_makes_the_same_files_of_a_patch(patch, tmp_path):
    by_git = trees.small(tmp_path / "git")
    ours = trees.small(tmp_path / "ours")
    diff = shipped.patches() / patch.file
    subprocess.run(["git", "apply", diff], cwd=by_git, check=True)
    change.apply(trees.SERIES, [patch], ours)
    assert trees.contents(by_git) == trees.contents(ours)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_every_patch_says_why_where_upstream_and_when_it_goes(patch):
    assert len(patch.why) > 60
    assert len(patch.remove_when) > 20
    assert not patch.upstream or patch.upstream.startswith("https://github.com/sgl-project/sglang/")


def test_the_readme_lists_exactly_the_patches():
    rows = [line for line in README.splitlines() if line.startswith("| [")]
    assert rows == [
        f"| [{patch.name}]({patch.file}) | {patch.why} | "
        f"{f'[SGLang]({patch.upstream})' if patch.upstream else 'none known'} "
        f"| {patch.remove_when} |"
        for patch in PATCHES
    ]


def test_every_file_of_the_folder_is_one_of_a_patch():
    names = {path.name for path in shipped.patches().iterdir()}
    assert names == {"README.md", series.INDEX, *(patch.file for patch in PATCHES)}


def edited(folder, edit):
    shutil.copytree(shipped.patches(), folder)
    data = json.loads((folder / series.INDEX).read_text())
    edit(data["patches"])
    (folder / series.INDEX).write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: rows[0].pop("why"),
        lambda rows: rows[0].update(more=1),
        lambda rows: rows[0]["touches"].popitem(),
        lambda rows: rows[0].update(file="0009-none.patch"),
        lambda rows: rows.append(rows[0]),
    ],
    ids=["no reason", "unknown key", "a file less", "no such diff", "a file touched twice"],
)
def test_a_damaged_series_is_refused(edit, tmp_path):
    with pytest.raises(UserError, match="install it again"):
        series.read(edited(tmp_path / "patches", edit))


def test_a_diff_that_makes_another_file_than_its_digest_says_changes_nothing(tmp_path):
    def edit(rows):
        for digests in rows[1]["touches"].values():
            digests["after"] = 64 * "0"

    damaged = series.read(edited(tmp_path / "patches", edit))
    root = trees.small(tmp_path / "tree")
    before = trees.contents(root)
    with pytest.raises(UserError, match="would become sha256"):
        change.apply(damaged, damaged.patches, root)
    assert trees.contents(root) == before
