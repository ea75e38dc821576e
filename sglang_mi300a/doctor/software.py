"""What is installed and what would be imported, without importing any of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from sglang_mi300a import code_objects, hook_fit, settings
from sglang_mi300a.cli import hooks
from sglang_mi300a.doctor.facts import AiterInstall, PluginEntry, SGLangImport, Software
from sglang_mi300a.doctor.machine import text
from sglang_mi300a.errors import UserError
from sglang_mi300a.patches import change, fit, series
from sglang_mi300a.supported import installed_version

DISTRIBUTIONS = (
    "amd-aiter", "aiter", "numpy", "petit-kernel", "sgl-kernel", "sglang", "torch", "transformers",
    "triton",
)  # fmt: skip
ASKED_OF_SGLANG = ("transformers", "xgrammar")
"""Dependencies of SGLang whose exact version matters and that images are seen to change."""

AITER_MODULES = (
    "jit.core", "mla", "ops.shuffle", "ops.triton.attention.unified_attention", "ops.triton.quant",
    "tuned_gemm", "utility.fp4_utils",
)  # fmt: skip
"""What SGLang 0.5.18 imports of AITER for this model on gfx942."""

KNOWN_LOCK_SOURCES = {"a10c34a50c69cb0b": "amd-aiter 0.1.7.post2.dev18"}
"""Whose locks they are, by digest of the source."""

PLUGIN_GROUP = "sglang.srt.plugins"


def gather(root: Path = Path("/")) -> Software:
    """Return what is installed.

    Args:
        root: Directory that stands for ``/``, for ROCm's own files.
    """
    versions = {name: installed_version(name) for name in DISTRIBUTIONS}
    sglang = _folder_of("sglang")
    return Software(
        python=platform.python_version(),
        package=installed_version("sglang-mi300a") or "source tree",
        kernels=_kernels_fault(),
        versions={name: version for name, version in versions.items() if version is not None},
        torch_hip=_torch_hip(_folder_of("torch")),
        rocm=text(root / "opt/rocm/.info/version"),
        sglang=sglang_import(search_path(), Path.cwd()) if sglang else None,
        aiter=aiter_install(_folder_of("aiter")),
        plugins=_plugins(),
        unmet=_unmet(),
        misfits=_misfits(sglang),
        patches=patches_in(sglang, "applied"),
        half_patched=patches_in(sglang, "half applied"),
        interpreter_has_space=" " in sys.executable,
    )


def search_path() -> list[Path]:
    """Return where imports look, the folder of the running script left out."""
    return [Path(part) for part in dict.fromkeys([*settings.python_path(), *sys.path]) if part]


def sglang_import(search: Iterable[Path], working: Path) -> SGLangImport | None:
    """Return the SGLang that would be imported; None if there is none.

    Args:
        search: Import path.
        working: Working directory, which ``python -m`` puts first.
    """
    folders = [path / "sglang" for path in (working, *search)]
    found = list(dict.fromkeys(f.resolve() for f in folders if (f / "srt").is_dir()))
    if not found:
        return None
    first = found[0]
    place = "elsewhere"
    if first.parent == working.resolve():
        place = "working directory"
    elif first.parent in {path.resolve() for path in map(Path, settings.python_path())}:
        place = "PYTHONPATH"
    elif first.parent.name in ("site-packages", "dist-packages"):
        place = "site-packages"
    version = hook_fit.version_in(hook_fit.DirectoryTree(first.parent))
    return SGLangImport("" if version == "unknown" else version, place, len(found))


def aiter_install(folder: Path | None) -> AiterInstall | None:
    """Return what an AITER is like, from its files; None without one."""
    if folder is None:
        return None
    baton = folder / "jit/utils/file_baton.py"
    source = text(baton)
    missing = []
    for name in AITER_MODULES:
        path = folder / name.replace(".", "/")
        if not path.with_suffix(".py").is_file() and not path.is_dir():
            missing.append(name)
    return AiterInstall(
        lock_dialect=_lock_dialect(source),
        lock_source_sha256=hashlib.sha256(baton.read_bytes()).hexdigest()[:16] if source else "",
        missing_modules=tuple(missing),
    )


def _lock_dialect(source: str) -> str:
    if "O_EXCL" not in source:
        return "unknown"
    if "gethostname" not in source:
        return "no owner"
    return "pid, host, namespace and start" if "flock" in source else "pid and host"


def _folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))


def _torch_hip(folder: Path | None) -> str:
    source = text(folder / "version.py") if folder else ""
    found = re.search(r"^hip\b[^=\n]*= *['\"]([^'\"]+)['\"]", source, re.M)
    return found[1] if found else ""


def _kernels_fault() -> str:
    root = code_objects.source_tree()
    if root is not None:
        rooms = code_objects.rooms_with_kernels(root / "csrc")
    else:
        files = code_objects.compiled_folder("code_objects").glob(f"*.{code_objects.ARCH}.co")
        rooms = sorted(path.name.split(".")[0] for path in files)
    if not rooms:
        return "none are shipped"
    for room in rooms:
        try:
            code_objects.load(room)
        except UserError as error:
            return f"room {room}: {error.found}"
    return ""


def _plugins() -> tuple[PluginEntry, ...]:
    found = {}
    for entry in importlib.metadata.entry_points(group=PLUGIN_GROUP):
        distribution = entry.dist.name if entry.dist else ""
        found[entry.name, distribution] = PluginEntry(
            entry.name, distribution, _is_there(entry.module)
        )
    return tuple(found[key] for key in sorted(found))


def _is_there(module: str) -> bool:
    """Return whether a module's file exists; only its top package may be looked up by import."""
    top, *rest = module.split(".")
    folder = _folder_of(top)
    if folder is None or not rest:
        return importlib.util.find_spec(top) is not None
    path = folder.joinpath(*rest)
    return path.is_dir() or any(path.parent.glob(f"{path.name}.*"))


def _unmet() -> tuple[str, ...]:
    try:
        lines = importlib.metadata.requires("sglang") or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    found = []
    for line in lines:
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if wanted.name in ASKED_OF_SGLANG and (wanted.marker is None or wanted.marker.evaluate()):
            version = installed_version(wanted.name)
            if version is None or not wanted.specifier.contains(version, prereleases=True):
                found.append(f"{wanted.name} {version or 'missing'}, wanted {wanted.specifier}")
    return tuple(found)


def patches_in(sglang: Path | None, status: fit.Status) -> tuple[str, ...]:
    """Return this package's patches that stand so to an SGLang, by name.

    What was being done when it was cut short counts as half applied.

    Args:
        sglang: The package's folder; None without one.
        status: ``applied`` or ``half applied``.
    """
    if sglang is None:
        return ()
    shipped = series.read()
    found = fit.judge(shipped, shipped.patches, sglang.parent)
    left = change.interrupted(sglang.parent) if status == "half applied" else None
    names = [one.patch.name for one in found if one.status == status]
    return tuple(dict.fromkeys([*names, *(left.patches or ("unknown",) if left else ())]))


def _misfits(sglang: Path | None) -> tuple[str, ...]:
    if sglang is None:
        return ()
    rows = hooks.judge_all(hook_fit.DirectoryTree(sglang.parent))
    return tuple(
        f"{row.name}: {row.target} {row.status}"
        for row in rows
        if row.required and row.status != "fits"
    )
