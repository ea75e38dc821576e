"""The pure parts on the oldest and the newest CPython that SGLang has wheels for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import repository

PYTHONS = ("3.10", "3.13")

# Tests that build this package, judge the installed SGLang, boot it or start processes that import
# torch, or that execute machine code or kernels whatever the Python; and the pure ones of them.
NOT_PURE = (
    *("tests/package/", "tests/conformance/", "tests/serving/", "tests/cpu_engine/"),
    *("tests/gfx942/", "tests/moe/kernels/", "tests/moe/triton/", "tests/gemm/kernels/"),
    *("tests/patches/", "tests/demo/", "tests/kernel_cache/test_build.py"),
    "tests/kernel_cache/test_kernel_cache_command.py",
)
PURE_AMONG_THEM = (
    *("tests/package/test_shipped.py", "tests/serving/test_preset.py"),
    "tests/cpu_engine/test_recipe.py",
)

# Runs where torch is not installed, so what needs it is skipped, and said.
WITHOUT_TORCH = '''
"""Turn a missing torch, SGLang or transformers into a skip that says so."""
import pytest

from sglang_mi300a.errors import UserError

NEEDS = ("torch", "sglang", "transformers", "tokenizers", "safetensors")


def _lacks(excinfo):
    error = excinfo.value
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in NEEDS:
            return error.name
        if isinstance(error, UserError) and error.where in NEEDS:
            return error.where
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    def skip_where_it_is_lacking(original):
        def collect():
            try:
                return original()
            except (collector.CollectError, ModuleNotFoundError, UserError) as error:
                if name := _lacks(pytest.ExceptionInfo.from_exception(error)):
                    pytest.skip(f"needs {name}", allow_module_level=True)
                raise
        return collect

    collector.collect = skip_where_it_is_lacking(collector.collect)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None and (name := _lacks(call.excinfo)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: needs {name}")
    return report
'''


def pure_test_files():
    """Return the test files that may run without SGLang; those that need torch skip themselves."""
    files = [name for name in repository.files() if name.rsplit("/", 1)[-1].startswith("test_")]
    pure = [name for name in files if name.startswith("tests/") and not name.startswith(NOT_PURE)]
    return [*pure, *PURE_AMONG_THEM]


def interpreter(version):
    """Return the path of a CPython of this version, or None."""
    candidates = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout
        candidates += sorted(Path(root.strip()).glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in candidates:
        if candidate is None:
            continue
        asked = subprocess.run(  # a version manager's shim may answer for an absent interpreter
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return candidate
    return None


@pytest.fixture(params=PYTHONS)
def other_python(request):
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"no CPython {request.param} on this machine")
    return found


def test_every_file_of_the_package_compiles(other_python):
    files = [str(path) for path in repository.PACKAGE.rglob("*.py")]
    code = "import sys\nfor f in sys.argv[1:]: compile(open(f, 'rb').read(), f, 'exec')"
    done = subprocess.run(
        [other_python, "-c", code, *files], capture_output=True, text=True, check=False
    )
    assert files
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheel_installs_and_the_pure_tests_pass(other_python, built, tmp_path):
    python = tmp_path / "venv/bin/python"
    subprocess.run([other_python, "-m", "venv", tmp_path / "venv"], check=True)
    # Through the ordinary index, as a user would, held to the versions that the tests are run with.
    pins = [f"--constraint={repository.ROOT}/requirements/{n}.txt" for n in ("cpu-engine", "dev")]
    wheel = f"{built.wheel}[kernel-cache,test]"
    install = [python, "-m", "pip", "install", "--quiet", *pins, wheel]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    helps = subprocess.run([python.with_name("sglang-mi300a"), "--help"], cwd=tmp_path, check=False)
    assert helps.returncode == 0

    (tmp_path / "without_torch.py").write_text(WITHOUT_TORCH)
    done = subprocess.run(
        [
            *(python, "-m", "pytest", "-q", "-m", "not slow"),
            *("-p", "without_torch", "-p", "no:cacheprovider", *pure_test_files()),
        ],
        cwd=repository.ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    sys.stdout.write(done.stdout)  # pytest shows it if this test fails
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed >= 200
