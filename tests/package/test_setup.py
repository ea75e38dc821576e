"""`make setup` and `.ci/run` where something is missing: said, never worked around."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import repository

NEEDED = (
    *("awk", "bash", "cat", "cut", "df", "dirname", "grep", "mkdir", "rm", "sha256sum"),
    *("touch", "tr", "uname"),
)
LLVM = ("clang", "ld.lld", "llvm-objdump", "llvm-readelf", "llvm-mca")


class Machine:
    """A checkout, and a PATH that holds only what a test puts there."""

    def __init__(self, root):
        self.tree = root / "a tree"  # a space in the path must not matter
        self.bin = root / "bin"
        self.bin.mkdir()
        for name in ("tools/setup.sh", ".ci/run", "pyproject.toml", "setup.py"):
            self.copy(name)
        shutil.copytree(repository.ROOT / "requirements", self.tree / "requirements")
        for name in NEEDED:
            (self.bin / name).symlink_to(shutil.which(name))

    def copy(self, name):
        target = self.tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository.ROOT / name, target)

    def program(self, name, script="exit 0"):
        """Put a program on the PATH that notes each call in calls.txt."""
        path = self.bin / name
        note = f'echo {name} "$@" >>"{self.tree}/calls.txt"'
        path.write_text(f"#!{shutil.which('bash')}\n{note}\n{script}\n")
        path.chmod(0o755)

    @property
    def calls(self):
        """What the programs noted, one call a line."""
        path = self.tree / "calls.txt"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, script, *arguments, **environment):
        return subprocess.run(
            [shutil.which("bash"), script, *arguments],
            cwd=self.tree,
            env={"PATH": str(self.bin), "HOME": str(self.tree), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    for name in ("apt-get", "sudo", "git", "g++", "python3", *(f"{tool}-19" for tool in LLVM)):
        made.program(name)
    return made


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("python3", "python3: CPython 3.10 to 3.13 with venv"),
        ("g++", "g++"),
        ("git", "git"),
        ("clang-19", "clang, lld and the llvm tools, 19 or later, with the AMDGPU target"),
        ("ld.lld-19", "clang, lld and the llvm tools, 19 or later, with the AMDGPU target"),
    ],
)
def test_setup_names_what_is_missing_and_the_one_line_to_type(machine, lacking, said):
    (machine.bin / lacking).unlink()
    done = machine.run("tools/setup.sh")
    assert done.returncode == 2
    missing, where, line = done.stderr.splitlines()
    assert missing == f"setup: missing: {said}"
    assert where.startswith("On Debian or Ubuntu, as root")
    assert "sudo" not in line
    assert line.split("--no-install-recommends ")[1].split() == apt_packages()


def test_setup_refuses_a_clang_without_the_amdgpu_target(machine):
    machine.program("clang-19", "exit 1")
    done = machine.run("tools/setup.sh")
    assert done.returncode == 2
    assert "AMDGPU target" in done.stderr


def test_setup_never_calls_apt_or_sudo_and_makes_nothing_when_something_is_missing(machine):
    (machine.bin / "g++").unlink()
    assert machine.run("tools/setup.sh").returncode == 2
    assert not [call for call in machine.calls if call.startswith(("apt", "sudo"))]
    assert not (machine.tree / ".venv").exists()


def test_setup_refuses_another_processor(machine):
    (machine.bin / "uname").unlink()
    machine.program("uname", "echo Linux riscv64")
    done = machine.run("tools/setup.sh")
    assert done.returncode == 2
    assert "found Linux riscv64; supported: Linux x86_64" in done.stderr


def test_setup_says_first_what_it_costs_and_stops_when_the_disk_is_too_small(machine):
    (machine.bin / "df").unlink()
    machine.program("df", "printf 'head\\n/dev/x 9 9 100 9%% /\\n'")
    done = machine.run("tools/setup.sh")
    assert done.returncode == 2
    assert "MB on disk (100 MB free here)" in done.stdout
    assert "found 100 MB free" in done.stderr
    assert not (machine.tree / ".venv").exists()


def test_a_second_setup_repeats_only_the_step_whose_file_changed(machine):
    machine.program("python3", f'if [ "$2" = venv ]; then {making_a_venv(machine)}; fi')
    assert machine.run("tools/setup.sh").returncode == 0
    assert len(pip_calls(machine)) == 4

    assert machine.run("tools/setup.sh").returncode == 0
    assert len(pip_calls(machine)) == 4

    with (machine.tree / "requirements/dev.txt").open("a") as file:
        file.write("# changed\n")
    assert machine.run("tools/setup.sh").returncode == 0
    assert len(pip_calls(machine)) == 5
    assert pip_calls(machine)[-1].endswith("-r requirements/dev.txt")


def test_a_step_that_failed_is_done_again(machine):
    machine.program("python3", f'if [ "$2" = venv ]; then {making_a_venv(machine)}; fi')
    broken = machine.tree / "broken"
    broken.touch()
    assert machine.run("tools/setup.sh").returncode != 0
    failed = len(pip_calls(machine))
    broken.unlink()
    assert machine.run("tools/setup.sh").returncode == 0
    assert pip_calls(machine)[failed] == pip_calls(machine)[failed - 1]


def test_ci_installs_what_is_missing_then_runs_both_tiers(machine):
    machine.program("dpkg-query", 'case "$3" in git|make) printf installed;; *) exit 1;; esac')
    machine.program("make")
    assert machine.run(".ci/run").returncode == 0
    update, install, *tests = [call for call in machine.calls if not call.startswith("dpkg")]
    assert update.endswith("update -qq")
    assert set(apt_packages()) - {"git", "make"} == set(install.split("recommends ")[1].split())
    assert tests == ["make test", "make test-slow", "make newest-sglang"]


def test_ci_leaves_apt_alone_when_all_is_there(machine):
    machine.program("dpkg-query", "printf installed")
    machine.program("make")
    assert machine.run(".ci/run").returncode == 0
    assert not [call for call in machine.calls if call.startswith("apt")]


def test_ci_stops_at_a_failing_tier_even_if_no_test_ran(machine):
    machine.program("dpkg-query", "printf installed")
    machine.program("make", "exit 5")
    assert machine.run(".ci/run").returncode == 5
    assert machine.calls[-1] == "make test"


def test_make_says_what_it_can_make():
    make = shutil.which("make")
    said = subprocess.run(
        [make, "help"], cwd=repository.ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = {line.split()[1] for line in said.splitlines() if line.startswith("make ")}
    makefile = Path(repository.ROOT / "Makefile").read_text()
    phony = makefile.split(".PHONY:")[1].splitlines()[0].split()
    assert listed == set(phony)
    for target in ("demo", "test", "test-slow", "lint", "wheel", "format"):
        plan = subprocess.run(
            [make, "-n", target],
            cwd=repository.ROOT,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert plan.startswith("tools/setup.sh"), target


def apt_packages():
    return (repository.ROOT / "requirements/apt.txt").read_text().split()


def pip_calls(machine):
    return [call for call in machine.calls if " -m pip install" in call]


def making_a_venv(machine):
    """Return shell that makes a .venv whose python notes its calls and fails on request."""
    note = f'echo venv-python "$@" >>"{machine.tree}/calls.txt"'
    fail = f'[ -e "{machine.tree}/broken" ] && [ "$2" = pip ] && exit 1; exit 0'
    return (
        "mkdir -p .venv/bin; "
        f"printf '%s\\n' '#!{shutil.which('bash')}' '{note}' '{fail}' >.venv/bin/python; "
        f"{shutil.which('chmod')} +x .venv/bin/python"
    )
