"""What a code object says of itself is read; what is damaged or foreign is refused by name."""

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a import code_objects
from sglang_mi300a.errors import UserError
from sglang_mi300a.launcher import toolchain
from tests.launcher import sample


def test_kernels_arguments_and_makers_are_read():
    code = sample.code()
    assert set(code.kernels) == {"scale_rows", "add_table", "mixed_widths"}
    kernel = code.kernel("scale_rows")
    named = [(one.name, one.kind, one.offset_bytes, one.size_bytes) for one in kernel.arguments]
    assert named == [
        ("x", "global_buffer", 0, 8),
        ("row_scale", "global_buffer", 8, 8),
        ("out", "global_buffer", 16, 8),
        ("factor", "by_value", 24, 4),
        ("rows", "by_value", 28, 4),
        ("columns", "by_value", 32, 4),
    ]
    assert (kernel.symbol, kernel.max_threads, kernel.wave_size) == ("scale_rows.kd", 256, 64)
    assert (kernel.lds_bytes, kernel.scratch_bytes, kernel.vgpr_spills) == (0, 0, 0)
    assert 0 < kernel.vgprs <= 512
    assert kernel.kernarg_bytes >= 36
    assert code.version == 5
    compiler, linker = code.made_by
    assert "clang version" in compiler
    assert "LLD" in linker


def test_the_budget_is_what_the_source_takes():
    text = """
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(128, 128))) void k(float* out) {
      __attribute__((shared)) static volatile float row[1000];
      volatile float own[16];
      const unsigned i = __builtin_amdgcn_workitem_id_x();
      row[i] = 1.0f;
      own[i % 16] = row[(i * 7) % 128];
      out[i] = own[(i * 3) % 16];
    }
    """
    image = toolchain.compile_text(toolchain.find_clang(), text, "a budget")
    kernel = code_objects.read(image, "a budget").kernel("k")
    assert kernel.lds_bytes == 4000
    assert kernel.scratch_bytes >= 64
    assert kernel.max_threads == 128


def test_an_unknown_kernel_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="kernel nope: .*supported: add_table, mixed_widths, scale"):
        sample.code().kernel("nope")


@given(st.data())
def test_a_code_object_that_was_cut_off_anywhere_is_refused(data):
    image = sample.image()
    end = data.draw(st.integers(0, len(image) - 1))
    with pytest.raises(UserError, match="^cut: found"):
        code_objects.read(image[:end], "cut")


@given(st.data())
def test_damaged_bytes_are_read_or_refused_and_never_anything_else(data):
    image = bytearray(sample.image())
    for _ in range(data.draw(st.integers(1, 8))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        code = code_objects.read(bytes(image), "damaged")
        assert all(kernel.vgprs >= 0 for kernel in code.kernels.values())


@pytest.mark.parametrize(
    "target", ["gfx90a", "gfx950", "gfx1100", "gfx942:xnack+", "gfx942:sramecc-"]
)
def test_code_for_another_device_is_refused(target):
    clang = toolchain.find_clang()
    flags = [flag for flag in toolchain.FLAGS if "offload-arch" not in flag]
    done = subprocess.run(
        [*clang.command, *flags, f"--offload-arch={target}", "-o", "-", "-"],
        input=b'extern "C" __attribute__((global)) void k(int* p) { *p = 1; }',
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"{clang.version} has no {target}: {done.stderr.decode().splitlines()[0]}")
    with pytest.raises(UserError, match=f"found code for {re.escape(target)} .*: code for gfx942"):
        code_objects.read(done.stdout, "foreign")


def test_files_that_are_no_code_object_are_refused(tmp_path):
    for name, image in {"empty": b"", "text": b"no ELF at all" * 20}.items():
        with pytest.raises(UserError, match=f"^{name}: found .*supported: a 64-bit ELF file"):
            code_objects.read(image, name)
    program = (tmp_path / "program.c", tmp_path / "program.so")
    program[0].write_text("int f(void) { return 1; }\n")
    subprocess.run(["g++", "-shared", "-o", program[1], program[0]], check=True)
    with pytest.raises(UserError, match="ELF machine 62.*supported: an AMDGPU code object"):
        code_objects.read(program[1].read_bytes(), "a host's library")


def test_an_object_that_no_linker_finished_is_refused():
    image = bytearray(sample.image())
    section_table = int.from_bytes(image[40:48], "little")
    for index in range(int.from_bytes(image[60:62], "little")):
        kind = section_table + 64 * index + 4
        if image[kind] == 7:  # SHT_NOTE
            image[kind] = 1  # SHT_PROGBITS
    with pytest.raises(UserError, match="no metadata note"):
        code_objects.read(bytes(image), "unfinished")


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    """A folder with the sample's code object as a build leaves it."""
    out = tmp_path_factory.mktemp("built")
    toolchain.build_room(sample.CSRC, sample.ROOM, out, toolchain.find_clang())
    return out


@pytest.fixture
def built_room(built_once, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(built_once, tmp_path / "out")


def test_the_record_beside_a_code_object_says_how_it_was_made(built_room):
    code, record = code_objects.load_from(built_room, sample.ROOM)
    assert code.image == sample.image()
    assert record.arch == "gfx942"
    assert record.compiler == toolchain.find_clang().version
    assert record.flags == toolchain.FLAGS
    assert record.sources == tuple(
        f"sample/{name}"
        for name in (
            *("add_table.hip", "mixed_widths.hip", "sample.hip", "scale_rows.hip", "threads.h"),
        )
    )
    text = (built_room / "sample.gfx942.json").read_text()
    assert str(sample.CSRC) not in text
    assert code_objects.BuildRecord.from_json(text, "again") == record


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"code_sha256": "0" * 64}, "SHA-256"),
        ({"arch": "gfx90a"}, "arch gfx90a"),
        ({"schema": 2}, "supported: a record of schema 1"),
        ({"extra": 1}, "supported: a record of schema 1"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(built_room, change, found):
    path = built_room / "sample.gfx942.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=found):
        code_objects.load_from(built_room, sample.ROOM)


@pytest.mark.parametrize("name", ["sample.gfx942.co", "sample.gfx942.json"])
def test_a_missing_file_is_named(built_room, name):
    (built_room / name).unlink()
    with pytest.raises(UserError, match=f"{name}: found not readable"):
        code_objects.load_from(built_room, sample.ROOM)


def test_one_flipped_bit_of_the_code_is_seen(built_room):
    path = built_room / "sample.gfx942.co"
    image = bytearray(path.read_bytes())
    image[image.index(bytes.fromhex("000081bf"))] ^= 1  # s_endpgm
    path.write_bytes(image)
    with pytest.raises(UserError, match="found SHA-256"):
        code_objects.load_from(built_room, sample.ROOM)


@pytest.fixture
def tree(built_once, tmp_path, monkeypatch):
    """A source tree with the sample's kernels built, in which the package believes it lies."""
    shutil.copytree(sample.CSRC, tmp_path / "csrc")
    (tmp_path / "csrc/launcher").mkdir()
    (tmp_path / "csrc/launcher/launcher.h").touch()
    monkeypatch.setattr(code_objects, "_PACKAGE", tmp_path / "sglang_mi300a")
    shutil.copytree(built_once, code_objects.compiled_folder("code_objects"))
    return tmp_path


def test_in_a_tree_code_objects_lie_in_its_build_folder(tree):
    assert code_objects.source_tree() == tree
    code = code_objects.load(sample.ROOM)
    assert code.where == str(tree / "build/native/code_objects/sample.gfx942.co")
    assert code.digest == sample.code().digest


@pytest.mark.parametrize(
    "name", ["csrc/sample/scale_rows.hip", "csrc/sample/threads.h", "csrc/new.h"]
)
def test_in_a_tree_a_code_object_older_than_its_sources_is_refused(tree, name):
    with (tree / name).open("a") as file:
        file.write("// changed\n")
    with pytest.raises(UserError, match="other sources than csrc/sample holds now.*make setup"):
        code_objects.load(sample.ROOM)


def test_in_a_wheel_code_objects_lie_in_the_package(tree, monkeypatch):
    package = tree / "site-packages/sglang_mi300a"
    monkeypatch.setattr(code_objects, "_PACKAGE", package)
    with pytest.raises(UserError, match=r"install a wheel with kernels .*\+nokernels"):
        code_objects.load(sample.ROOM)
    shutil.copytree(tree / "build/native/code_objects", package / "code_objects")
    assert code_objects.source_tree() is None
    assert code_objects.load(sample.ROOM).where == str(package / "code_objects/sample.gfx942.co")


def test_code_objects_are_told_apart_by_their_bytes():
    code = sample.code()
    other = dataclasses.replace(code, image=code.image + b"\0")
    assert code.digest != other.digest
