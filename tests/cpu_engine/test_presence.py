"""The stand-in refuses beside the real package and on hardware, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_mi300a.cpu_engine import presence, recipe
from sglang_mi300a.device import Accelerator
from tests.cpu_engine import standin_process

STANDINS = recipe.standins_path()


def _reason(
    *more_path: Path, accelerators: tuple[Accelerator, ...] = (), torch_sees: bool = False
) -> str:
    return presence.reason_to_refuse(
        standins=STANDINS,
        search_path=[str(STANDINS), *map(str, more_path)],
        accelerators=accelerators,
        torch_sees_device=lambda: torch_sees,
    )


def _accelerator(arch: str, name: str) -> Accelerator:
    return Accelerator(index=0, name=name, arch=arch, num_visible_cus=228, is_apu=True, numa_node=0)


def _install(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_alone_it_may_be_used(tmp_path: Path) -> None:
    assert _reason(tmp_path) == ""


@pytest.mark.parametrize("name", presence.REAL_DISTRIBUTIONS)
def test_a_real_distribution_is_a_reason(tmp_path: Path, name: str) -> None:
    reason = _reason(_install(tmp_path, name, "1.2.3"))
    assert reason.startswith(f"{name} 1.2.3 is installed")
    assert str(STANDINS) in reason


def test_a_package_without_metadata_is_a_reason(tmp_path: Path) -> None:
    package = tmp_path / "sgl_kernel"
    package.mkdir()
    (package / "__init__.py").touch()
    assert _reason(tmp_path).startswith(f"another sgl_kernel is at {package / '__init__.py'}")


def test_the_served_accelerator_is_a_reason_even_if_torch_cannot_use_it() -> None:
    reason = _reason(accelerators=(_accelerator("gfx942", "AMD Instinct MI300A"),))
    assert reason.startswith("this node has AMD Instinct MI300A (gfx942)")


def test_a_laptop_s_graphics_are_no_reason() -> None:
    assert _reason(accelerators=(_accelerator("gfx1103", "AMD device 0x15bf"),)) == ""


def test_a_device_that_torch_sees_is_a_reason() -> None:
    assert _reason(torch_sees=True).startswith("torch finds an accelerator")


def test_torch_is_not_asked_where_a_cheaper_look_has_the_answer(tmp_path: Path) -> None:
    def asked() -> bool:
        raise AssertionError("torch was asked")

    assert presence.reason_to_refuse(
        standins=STANDINS,
        search_path=[str(_install(tmp_path, "sgl-kernel", "1"))],
        accelerators=(),
        torch_sees_device=asked,
    )


def test_importing_it_beside_a_real_one_fails_with_the_reason(tmp_path: Path) -> None:
    real = _install(tmp_path, "sglang-kernel", "0.4.10")
    done = standin_process.run("import sgl_kernel", real)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: sglang-mi300a's stand-in for SGLang's CPU kernels is not used: "
        "sglang-kernel 0.4.10 is installed; take "
    )


def test_a_refused_import_leaves_no_operators_behind(tmp_path: Path) -> None:
    code = """
try:
    import sgl_kernel
except ImportError:
    import sys, torch
    print("sgl_kernel" in sys.modules, hasattr(torch.ops.sgl_kernel, "decode_attention_cpu"))
"""
    real = _install(tmp_path, "sgl-kernel", "1")
    assert standin_process.output(code, real) == "False False"
