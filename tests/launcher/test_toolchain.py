"""Building code objects: any clang, the same bytes from the same sources, no header of a host."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import native_build, toolchain
from tests import repository
from tests.launcher import sample


@pytest.fixture(scope="module")
def clang():
    return toolchain.find_clang()


def candidates():
    """Return every compiler on this machine that the search would try."""
    return list(toolchain._candidates())


@pytest.fixture
def csrc(tmp_path):
    """A copy of the sample's sources."""
    return shutil.copytree(sample.CSRC, tmp_path / "csrc")


def test_the_same_sources_give_the_same_bytes_wherever_they_lie(clang, csrc):
    assert toolchain.compile_file(clang, csrc / "sample/sample.hip") == sample.image()


@pytest.mark.parametrize("name", ["clang-19", "clang-22", "amdclang++", "zig"])
def test_each_compiler_makes_the_declared_kernels(name, csrc):
    found = [one for one in candidates() if Path(one.zig or one.command[0]).name == name]
    if not found:
        pytest.skip(f"{name} is not installed")
    version = toolchain._version(found[0])
    image = toolchain.compile_file(found[0], csrc / "sample/sample.hip")
    code = code_objects.read(image, version)
    for signature in (sample.SCALE_ROWS, sample.ADD_TABLE, sample.MIXED_WIDTHS):
        assert len(signature.layout(code)) == len(signature.arguments)
        assert code.kernel(signature.kernel).vgpr_spills == 0


def test_zigs_clang_is_given_zigs_linker(tmp_path):
    zig = toolchain.Clang(("/there/zig", "clang"), "clang", zig="/there/zig")
    (flag,) = toolchain._linker(zig, tmp_path)
    assert flag == f"-B{tmp_path}"
    shim = (tmp_path / "lld").read_text().splitlines()
    assert shim == ["#!/bin/sh", "shift 2", 'exec "/there/zig" ld.lld "$@"']
    assert toolchain._linker(toolchain.Clang(("clang",), ""), tmp_path) == []


@pytest.mark.parametrize("header", ["cstdint", "stdint.h", "hip/hip_runtime.h", "stddef.h"])
def test_no_header_but_the_rooms_own_is_found(clang, header):
    with pytest.raises(UserError, match=f"'{header}' file not found"):
        toolchain.compile_text(clang, f"#include <{header}>\n", "a host's header")


def test_a_source_that_does_not_compile_is_refused_with_the_compilers_words(clang, csrc):
    (csrc / "sample/scale_rows.hip").write_text("void broken(\n")
    with pytest.raises(UserError, match=r"(?s)sample.hip: found .*scale_rows.hip:1:6: error"):
        toolchain.compile_file(clang, csrc / "sample/sample.hip")


def test_a_room_whose_source_leaves_a_kernel_out_is_refused(csrc):
    assert toolchain.room_source(csrc, "sample") == csrc / "sample/sample.hip"
    (csrc / "sample/one_more.hip").touch()
    with pytest.raises(UserError, match="sample.hip does not include one_more.hip"):
        toolchain.room_source(csrc, "sample")
    (csrc / "sample/sample.hip").unlink()
    with pytest.raises(UserError, match="does not include add_table.hip, mixed_widths.hip, one_m"):
        toolchain.room_source(csrc, "sample")


def test_without_a_clang_every_candidate_and_what_it_said_is_in_the_message(monkeypatch):
    monkeypatch.setattr(toolchain, "_candidates", list)
    with pytest.raises(UserError, match="found none of clang-19, .*SGLANG_MI300A_NO_KERNELS=1"):
        toolchain.find_clang()
    wrong = [toolchain.Clang((name,), "") for name in ("/bin/false", "/bin/echo", "/nowhere")]
    monkeypatch.setattr(toolchain, "_candidates", lambda: wrong)
    with pytest.raises(UserError) as caught:
        toolchain.find_clang()
    for said in ("/bin/false: ", "/bin/echo: echo (GNU", "/nowhere: No such file"):
        assert said in caught.value.found


def test_a_clang_without_the_amdgpu_target_is_passed_over(monkeypatch, tmp_path, clang):
    useless = tmp_path / "clang"
    useless.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "clang version 1" && exit\n'
        "echo 'error: unable to create target' >&2; exit 1\n"
    )
    useless.chmod(0o755)
    monkeypatch.setattr(
        toolchain, "_candidates", lambda: [toolchain.Clang((str(useless),), ""), clang]
    )
    assert toolchain.find_clang() == clang
    with pytest.raises(UserError, match="unable to create target"):
        toolchain.find_clang(str(useless))


@pytest.fixture
def tree(csrc):
    """A source tree whose only room is the sample."""
    for name in ("launcher", "host"):
        shutil.copytree(repository.ROOT / "csrc" / name, csrc / name)
    return csrc.parent


def test_only_what_changed_is_built_again(tree):
    everything = [native_build.CORE_FILE, native_build.HOST_FILE, "sample.gfx942.co"]
    assert list(native_build.build_tree(tree, with_pybind=False).made) == everything
    assert native_build.build_tree(tree, with_pybind=False).made == ()
    for changed, made in {
        "csrc/sample/threads.h": "sample.gfx942.co",
        "csrc/launcher/launcher.h": native_build.CORE_FILE,
        "csrc/host/stream_records.cpp": native_build.HOST_FILE,
    }.items():
        with (tree / changed).open("a") as file:
            file.write("// changed\n")
        assert native_build.build_tree(tree, with_pybind=False).made == (made,)


def test_a_damaged_or_foreign_product_is_built_again(tree, monkeypatch):
    built = native_build.build_tree(tree, with_pybind=False)
    code, record = built.code_objects
    code.write_bytes(code.read_bytes()[:-1])
    assert native_build.build_tree(tree, with_pybind=False).made == (code.name,)
    record.unlink()
    assert native_build.build_tree(tree, with_pybind=False).made == (code.name,)
    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-g0"))
    assert native_build.build_tree(tree, with_pybind=False).made == (code.name,)


def test_a_failed_build_leaves_the_old_product_whole(tree):
    code, _ = native_build.build_tree(tree, with_pybind=False).code_objects
    before = code.read_bytes()
    (tree / "csrc/sample/threads.h").write_text("broken\n")
    with pytest.raises(UserError, match="compiling sample.hip: found"):
        native_build.build_tree(tree, with_pybind=False)
    assert code.read_bytes() == before
    assert code_objects.load_from(code.parent, "sample")


def test_a_room_without_kernels_is_passed_over(tree):
    (tree / "csrc/empty").mkdir()
    (tree / "csrc/empty/notes.h").touch()
    assert code_objects.rooms_with_kernels(tree / "csrc") == ["sample"]
    shutil.rmtree(tree / "csrc/sample")
    assert native_build.build_kernels(tree, clang="/nowhere") == ([], [])


def test_without_a_cxx_compiler_the_way_out_is_said(tree, monkeypatch):
    monkeypatch.setattr(native_build, "_CXX_NAMES", ("/nowhere/g++",))
    with pytest.raises(UserError, match="none of /nowhere/g.*SGLANG_MI300A_NO_KERNELS=1"):
        native_build.build_launcher(tree, with_pybind=False)


def rooms():
    return code_objects.rooms_with_kernels(repository.ROOT / "csrc")


@pytest.mark.parametrize("room", rooms())
def test_each_shipped_room_is_read_by_the_compiler_without_a_warning(clang, room):
    source = toolchain.room_source(repository.ROOT / "csrc", room)
    shared = ["-I", str(source.parent.parent)]
    options = [*toolchain.FLAGS, "-fsyntax-only", "-Werror", *shared]
    command = [*clang.command, *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_warning_is_shown_and_does_not_stop_a_build(clang, capfd):
    text = 'extern "C" __attribute__((global)) void k(int* p) { int unused; *p = 1; }\n'
    assert code_objects.read(toolchain.compile_text(clang, text, "k"), "k").kernels
    assert "unused variable" in capfd.readouterr().err
