"""Build the package: data that lies beside it in the tree, native code, and the gfx942 kernels.

See pyproject.toml too. Three variables steer a build:

- ``SGLANG_MI300A_NO_KERNELS=1``: no compiler is needed, and the version says ``+nokernels``.
- ``SGLANG_MI300A_CLANG``: the clang for the kernels, a name or a path.
- ``SGLANG_MI300A_PYBIND11=1``: the wheel also holds the pybind11 binding, and so is for one Python.
  (In the tree, and so in an editable install, it is built wherever pybind11 is.)

``python setup.py native`` builds what is compiled into ``build/native``, where the package in the
tree and an editable install look for it; what is fresh is left alone.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

# The tree is not on the path of an isolated build.
from sglang_mi300a import code_objects, shipped  # noqa: E402
from sglang_mi300a.errors import UserError  # noqa: E402
from sglang_mi300a.launcher import native_build  # noqa: E402

ROOMS = code_objects.rooms_with_kernels(ROOT / "csrc")
HAS_KERNELS = bool(ROOMS) and os.environ.get("SGLANG_MI300A_NO_KERNELS", "0") != "1"
HAS_PYBIND = os.environ.get("SGLANG_MI300A_PYBIND11", "0") == "1"


def build_native(with_pybind: bool) -> native_build.Built:
    """Compile into the tree what is not fresh there."""
    clang = os.environ.get("SGLANG_MI300A_CLANG")
    try:
        built = native_build.build_tree(ROOT, with_pybind=with_pybind, clang=clang)
    except UserError as error:
        sys.exit(f"setup.py: {error}")
    for name in built.made:
        print(f"compiled {name}")
    return built


class Native(Command):
    """Compile into ``build/native`` of the tree."""

    description = "compile the launcher, the host library and the kernels into the tree"
    user_options: list = []  # noqa: RUF012 - setuptools wants a list

    def initialize_options(self) -> None:
        """Nothing to set."""

    def finalize_options(self) -> None:
        """Nothing to set."""

    def run(self) -> None:
        """Compile what is not fresh."""
        if HAS_KERNELS:
            build_native(with_pybind=native_build.can_build_pybind())


class BuildWithData(build_py):
    """Also put data folders, version facts and what is compiled where they are looked for."""

    def run(self) -> None:
        """Build; an editable install reads all of it from the tree."""
        if self.editable_mode:
            self.run_command("native")
            super().run()
            return
        package = Path(self.build_lib) / "sglang_mi300a"
        shutil.rmtree(package, ignore_errors=True)  # files of an earlier build must not ship
        super().run()
        for name in shipped.FOLDERS:
            shutil.copytree(ROOT / name, package / "data" / name)
        facts = {**shipped.facts(), "version": self.distribution.get_version()}
        (package / "supported.json").write_text(
            json.dumps(facts, indent=1) + "\n", encoding="utf-8"
        )
        if HAS_KERNELS:
            built = build_native(with_pybind=HAS_PYBIND)
            (package / "code_objects").mkdir()
            for path in built.code_objects:
                shutil.copy(path, package / "code_objects")
            for path in built.launcher:
                shutil.copy(path, package / "launcher")
            (package / "host").mkdir()
            shutil.copy(built.host, package / "host")


class WithKernels(Distribution):
    """This package: compiled where it has kernels."""

    def has_ext_modules(self) -> bool:
        """Return whether it holds compiled code, and so is installed and tagged by platform."""
        return HAS_KERNELS


class PlatformWheel(bdist_wheel):
    """A wheel for one platform but every Python; for one Python if it has the pybind11 module."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return Python, ABI and platform: the oldest glibc that the libraries run with."""
        python, abi, platform = super().get_tag()
        if not HAS_KERNELS:
            return python, abi, platform
        launcher, _ = native_build.build_launcher(ROOT, with_pybind=HAS_PYBIND)
        host, _ = native_build.build_host(ROOT)
        if not HAS_PYBIND:
            python, abi = "py3", "none"
        return python, abi, native_build.wheel_platform([*launcher, host])


class NamedInfo(egg_info):
    """Metadata whose version says so where the kernels are missing."""

    def finalize_options(self) -> None:
        """Add to the version; not to a source archive's, which holds the sources of all kernels."""
        if not HAS_KERNELS and "sdist" not in sys.argv:
            self.tag_build = "+nokernels"
        super().finalize_options()


setup(
    distclass=WithKernels,
    cmdclass={
        "build_py": BuildWithData,
        "bdist_wheel": PlatformWheel,
        "egg_info": NamedInfo,
        "native": Native,
    },
)
