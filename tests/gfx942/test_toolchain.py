"""Missing tools fail the tests and say what to type; products are made once per content."""

import shutil

import pytest

from tests.gfx942 import toolchain


@pytest.mark.parametrize("name", ["clang", "ld.lld", "llvm-objdump", "g++"])
def test_a_missing_tool_fails_with_the_line_that_installs_it(monkeypatch, name):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(AssertionError, match=r"not installed.*\n.*apt-get install") as caught:
        toolchain.tool.__wrapped__(name)
    line = str(caught.value).splitlines()[-1].split()
    assert {"clang-19", "lld-19", "llvm-19", "g++"} <= set(line)


def test_a_tool_that_fails_says_its_command_and_its_errors():
    with pytest.raises(AssertionError, match=r"clang.*no-such-file(.|\n)*error"):
        toolchain.run([toolchain.tool("clang"), "no-such-file.c"])


def test_a_product_is_made_anew_only_when_what_it_depends_on_changes(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "CACHE", tmp_path / "cache")
    made = []

    def make(path):
        made.append(path)
        path.write_text("product")

    first = toolchain.kept(".txt", ["a", b"b"], make)
    assert toolchain.kept(".txt", ["a", b"b"], make) == first
    assert first.read_text() == "product"
    others = {toolchain.kept(".txt", key, make) for key in (["ab"], ["a", "c"], ["", "ab"])}
    assert len(made) == 4
    assert len(others | {first}) == 4


def test_a_header_that_changes_makes_a_new_code_object(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "CACHE", tmp_path / "cache")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    source = tmp_path / "kernel.hip"
    source.write_text(
        '#include "elsewhere/value.h"\n'
        'extern "C" __attribute__((global)) void k(int* out) { *out = VALUE; }\n'
    )
    (folder / "value.h").write_text("#define VALUE 1\n")
    first = toolchain.compile_hip(source)
    assert toolchain.compile_hip(source) == first
    (folder / "value.h").write_text("#define VALUE 2\n")
    assert toolchain.compile_hip(source) != first
    assert toolchain.compile_hip(source, ["-DOTHER"]) != first
