"""The source archive and the wheel, built once a session, and an environment with the wheel."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import repository


@dataclass(frozen=True)
class Built:
    """What a build read and made.

    Attributes:
        files: The repository's files that it was given.
        sdist: The source archive.
        wheel: The wheel, built from the archive.
    """

    files: list[str]
    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel and its four dependencies, nothing else."""

    root: Path

    def run(self, program, *arguments):
        """Run a program of the environment from elsewhere; return the finished process."""
        return subprocess.run(
            [self.root / "bin" / program, *arguments],
            cwd=self.root,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.root)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def says(self, code):
        """Return what a line of Python prints in the environment."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The source archive and the wheel of this tree, built with the tools at hand (no network)."""
    tree = tmp_path_factory.mktemp("tree")
    files = repository.files()
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository.ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree],
        cwd=out,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Built(files, sdist, wheel)


@pytest.fixture(scope="session")
def metadata(built):
    """What the wheel says of itself, as a mapping of headers."""
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="session")
def installed(built, metadata, tmp_path_factory):
    """The wheel installed by pip into an environment of its own.

    Its dependencies are linked from the running environment, one by one, so that the test needs no
    network and nothing undeclared (torch, SGLang) is in reach.
    """
    root = tmp_path_factory.mktemp("installed")
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin/python"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", built.wheel],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (site,) = root.glob("lib/python*/site-packages")
    for line in metadata.get_all("Requires-Dist"):
        if Requirement(line).marker is None:
            _link(Requirement(line).name, site)
    return Installed(root)


def _link(name, site):
    distribution = importlib.metadata.distribution(name)
    tops = {file.parts[0] for file in distribution.files if re.match(r"\w", file.parts[0])}
    for top in tops - {"__pycache__"}:
        (site / top).symlink_to(distribution.locate_file(top))
