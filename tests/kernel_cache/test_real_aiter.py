"""PyPI's AITER, its own builder and ninja, with a compiler that only writes files."""

import fnmatch
import os

import pytest

from sglang_mi300a.kernel_cache import aiter_install, key, launch_copy, needed
from sglang_mi300a.kernel_cache.build import Builder
from tests.kernel_cache import aiter_wheel, standin_rocm


@pytest.fixture
def wheel_install(tmp_path):
    return aiter_install.at(aiter_wheel.package(tmp_path / "wheel"))


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    """A stand-in ROCm on the path; return its folder."""
    for name, value in standin_rocm.make(tmp_path / "rocm").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'rocm/bin'}:{os.environ['PATH']}")
    return tmp_path / "rocm"


def test_every_needed_module_is_known_to_it(wheel_install):
    names = [needed.module_in(row, wheel_install) for row in needed.rows()]
    assert set(names) <= set(wheel_install.recipes())
    assert names[0] == "module_aiter_enum"  # the older of two names


def test_its_key_names_version_and_sources(wheel_install, rocm):
    one = key.of_this_machine(wheel_install, "gfx942", 228, needed.names())
    assert one.aiter_version == "0.1.7.post2.dev18"
    assert one.rocm == "7.0.51831-7c9236b16"
    (wheel_install.meta / "csrc/kernels/sample_kernels.cu").write_text("// changed\n")
    other = key.of_this_machine(wheel_install, "gfx942", 228, needed.names())
    assert [line.split(":")[0] for line in one.differences(other)] == ["aiter_source"]


def test_its_own_builder_builds_a_module_and_a_generated_variant(
    wheel_install, rocm, store, local, tmp_path
):
    made = key.of_this_machine(wheel_install, "gfx942", 228, needed.names())
    builder = Builder(key=made, install=wheel_install, store=store, local=local, num_jobs=2)
    wanted = ("sample", "batch-prefill-nmask")
    outcomes = builder.run([row for row in needed.rows() if row.name in wanted])
    assert {outcome.module for outcome in outcomes} == {
        "module_sample",
        "mha_batch_prefill_bf16_nlogits_nbias_nmask_nlse_ndropout",
    }
    for row in needed.rows():  # a launch knows both by AITER's own names
        if row.name in wanted:
            assert any(fnmatch.fnmatch(f"{one.module}.so", row.file) for one in outcomes) is bool(
                row.file
            )
    sources = (rocm / "compiled").read_text().split()
    assert "sample_kernels.cu" in sources
    # The generator of attention kernels ran, for this variant alone. This AITER's makes heads of
    # 128 only; the model's have 256, which the ROCm image's newer one makes.
    generated = [name for name in sources if name.startswith("fmha_batch_prefill_d128_bf16")]
    assert len(generated) == 2
    assert all("_nlogits_nbias_" in name and "_mask" not in name for name in generated)
    copy = launch_copy.make(made, [store], local, wheel_install.prebuilt, print)
    assert (copy.directory / "module_sample.so").is_file()
    copy.close(print)
