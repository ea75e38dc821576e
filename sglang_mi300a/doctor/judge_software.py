"""Findings about what is installed and what would be imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from sglang_mi300a import shipped
from sglang_mi300a.doctor import places
from sglang_mi300a.doctor.facts import Facts
from sglang_mi300a.doctor.judging import Seen, judge
from sglang_mi300a.supported import fits

OWN_PLUGIN = "mi300a"


def release(text: str) -> tuple[int, int]:
    """Return major and minor of a version such as ``7.0.0-38`` or ``7.2.53211-e1a6bc5``; else 0."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@judge(
    "breaks",
    why="hooks and kernels are written for one SGLang and tested with these versions",
    cure="use the ROCm image of the supported SGLang; this package never installs one",
    anywhere=True,
)
def unsupported_version(facts: Facts) -> Iterator[Seen]:
    """Judge Python, torch and SGLang against the supported range."""
    for name, specifier in shipped.supported().items():
        is_python = name == "python"
        version = facts.software.python if is_python else facts.software.versions.get(name)
        if version is None or not fits(version, specifier):
            yield Seen(f"{name} {version or 'not installed'}, supported: {specifier}")


@judge(
    "breaks",
    why="a server started in this shell imports another SGLang than the one installed, and tests "
    "and hooks were of the installed one",
    cure="unset PYTHONPATH, leave that folder, or `pip uninstall` the copy that is not meant",
    anywhere=True,
)
def wrong_sglang(facts: Facts) -> Iterator[Seen]:
    """Judge that the SGLang that would be imported is the installed one."""
    found, installed = facts.software.sglang, facts.software.versions.get("sglang")
    if found is None:
        return
    shadows = found.num_candidates > 1 and found.place in ("working directory", "PYTHONPATH")
    differs = bool(found.version and installed) and not _same(found.version, installed or "")
    if shadows or differs:
        yield Seen(
            f"SGLang {found.version or 'of unknown version'} from {found.place} comes before "
            f"{installed or 'none'} installed ({found.num_candidates} on the path)"
        )


def _same(one: str, other: str) -> bool:
    try:
        return Version(one).release == Version(other).release
    except InvalidVersion:
        return one == other


@judge(
    "breaks",
    why="hooks put our code where this SGLang no longer looks; the server refuses to start",
    cure="install the supported SGLang; `sglang-mi300a hooks check` shows the differences",
    anywhere=True,
)
def hooks_do_not_fit(facts: Facts) -> Iterator[Seen]:
    """Judge that every required hook fits."""
    if facts.software.misfits:
        yield Seen("; ".join(facts.software.misfits))


@judge(
    "note",
    why="a patch of this package was applied to SGLang here, on request; results are of a patched "
    "SGLang, and no preset needs one",
    cure="nothing, or `sglang-mi300a patch revert {name}`",
    anywhere=True,
)
def sglang_patched(facts: Facts) -> Iterator[Seen]:
    """Judge that SGLang is as it was installed."""
    for name in facts.software.patches:
        yield Seen(f"patch {name} is applied", {"name": name})


@judge(
    "risks",
    why="patching SGLang was cut short: some of its files are changed and others are not",
    cure="sglang-mi300a patch revert",
    anywhere=True,
)
def sglang_half_patched(facts: Facts) -> Iterator[Seen]:
    """Judge that no patch is half applied."""
    for name in facts.software.half_patched:
        yield Seen(f"patch {name} is half applied")


@judge(
    "breaks",
    why="without its entry point SGLang never loads this package",
    cure="pip install --force-reinstall --no-deps sglang-mi300a",
    anywhere=True,
)
def plugin_not_installed(facts: Facts) -> Iterator[Seen]:
    """Judge that the entry point is there."""
    if not any(entry.name == OWN_PLUGIN for entry in facts.software.plugins):
        yield Seen(f"no entry point {OWN_PLUGIN} in SGLang's plugin group")


@judge(
    "breaks",
    why="of two entry points with one name SGLang loads one and drops the other without a word",
    cure="pip uninstall {other}",
    anywhere=True,
)
def plugin_name_taken(facts: Facts) -> Iterator[Seen]:
    """Judge that no two distributions declare the same plugin."""
    by_name: dict[str, list[str]] = {}
    for entry in facts.software.plugins:
        by_name.setdefault(entry.name, []).append(entry.distribution)
    for name, owners in by_name.items():
        if len(owners) > 1:
            others = [owner for owner in owners if owner != "sglang-mi300a"] or owners
            yield Seen(f"plugin {name} of {' and '.join(owners)}", {"other": others[0]})


@judge(
    "risks",
    why="SGLang logs a plugin that cannot be imported and serves on without it",
    cure="pip uninstall {distribution}, or name the wanted ones: export SGLANG_PLUGINS=mi300a",
    anywhere=True,
)
def broken_plugin(facts: Facts) -> Iterator[Seen]:
    """Judge that every plugin's module is there."""
    for entry in facts.software.plugins:
        if not entry.importable:
            yield Seen(
                f"plugin {entry.name} of {entry.distribution}: its module is missing",
                {"distribution": entry.distribution or entry.name},
            )


@judge(
    "breaks",
    why="the expert layer has no gfx942 kernel without it: stock and AITER have none for MXFP4",
    cure="pip install --force-reinstall --no-deps sglang-mi300a (a wheel whose version has no "
    "+nokernels)",
)
def wheel_without_kernels(facts: Facts) -> Iterator[Seen]:
    """Judge that the kernels are shipped and whole."""
    if facts.software.kernels or "nokernels" in facts.software.package:
        yield Seen(
            f"sglang-mi300a {facts.software.package}: {facts.software.kernels or 'no kernels'}"
        )


@judge(
    "breaks",
    why="pip has replaced the image's torch by one that cannot use the accelerator",
    cure="start from the image again and install with `pip install --no-deps`",
)
def torch_without_hip(facts: Facts) -> Iterator[Seen]:
    """Judge that torch is a HIP build."""
    version = facts.software.versions.get("torch")
    if version is not None and not facts.software.torch_hip:
        yield Seen(f"torch {version} was not built for HIP")


@judge(
    "risks",
    why="libraries of two ROCm releases in one process end in undefined symbols or worse",
    cure="use torch and ROCm of one image",
)
def two_rocm_releases(facts: Facts) -> Iterator[Seen]:
    """Judge that torch was built for the ROCm that is installed."""
    built, here = release(facts.software.torch_hip), release(facts.software.rocm)
    if built != (0, 0) and here != (0, 0) and built != here:
        yield Seen(f"torch for HIP {facts.software.torch_hip}, ROCm {facts.software.rocm}")


@judge(
    "breaks",
    why="these releases' hipBLASLt leaves part of some bf16 split-K results unwritten: NaN, "
    "without an error",
    cure="use an image with ROCm 7.0 to 7.2",
)
def rocm_with_nan_gemms(facts: Facts) -> Iterator[Seen]:
    """Judge that ROCm is not one of those."""
    for what, text in (("ROCm", facts.software.rocm), ("torch for HIP", facts.software.torch_hip)):
        if (7, 12) <= release(text) <= (7, 13):
            yield Seen(f"{what} {text}")
            return


@judge(
    "note",
    why="up to ROCm 7.2.0 a watchdog thread's look at an event during graph capture can end the "
    "process (exit code -6 at start-up); newer AITER all-reduces provoke it",
    cure="if it happens: an image with ROCm 7.2.2 or newer, or --disable-custom-all-reduce",
)
def rocm_capture_race(facts: Facts) -> Iterator[Seen]:
    """Judge that ROCm is newer than that."""
    text = facts.software.rocm
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    if numbers and tuple(map(int, numbers.groups())) <= (7, 2, 0):
        yield Seen(f"ROCm {text}")


@judge(
    "risks",
    why="copies to the device out of mapped files were a thousand times slower on this kernel "
    "(32 MiB in 16 s); this package maps no weights, other tools do",
    cure="apt-get install linux-image-generic-hwe-24.04 (7.0.0-30 or newer) and boot it",
)
def kernel_with_slow_mapped_copies(facts: Facts) -> Iterator[Seen]:
    """Judge that the kernel is not one of Ubuntu's 7.0.0 before build 30."""
    found = re.match(r"7\.0\.0-(\d+)-", facts.machine.kernel)
    if found and int(found[1]) < 30:
        yield Seen(f"kernel {facts.machine.kernel}")


@judge(
    "breaks",
    why="the presets turn AITER on: attention, norms and collectives come from it",
    cure="use the ROCm image of the supported SGLang, which has AITER",
)
def aiter_missing(facts: Facts) -> Iterator[Seen]:
    """Judge that AITER is there."""
    if facts.software.aiter is None:
        yield Seen("no module aiter on the import path")


@judge(
    "breaks",
    why="SGLang imports these; modules move between AITER's releases",
    cure="use the AITER that the image of the supported SGLang has",
)
def aiter_lacks_modules(facts: Facts) -> Iterator[Seen]:
    """Judge that AITER has what SGLang imports."""
    if facts.software.aiter and facts.software.aiter.missing_modules:
        yield Seen(f"aiter without {', '.join(facts.software.aiter.missing_modules)}")


@judge(
    "risks",
    why="SGLang pins it because others changed what it relies on",
    cure="pip install --no-deps {wanted}",
    anywhere=True,
)
def dependency_changed(facts: Facts) -> Iterator[Seen]:
    """Judge that SGLang's sensitive dependencies are those it asks for."""
    for text in facts.software.unmet:
        found, _, wanted = text.partition(", wanted ")
        name = found.split(" ")[0]
        yield Seen(text, {"wanted": f"'{name}{wanted}'"})


@judge(
    "breaks",
    why="the server begins with the same import",
    cure="use the image's own packages; undefined symbols mean a wheel built for another torch",
)
def sglang_fails_to_import(facts: Facts) -> Iterator[Seen]:
    """Judge that SGLang can be imported."""
    if facts.trials.sglang.status not in ("fine", "not tried"):
        yield Seen(f"import of SGLang: {facts.trials.sglang.status}")


@judge(
    "risks",
    why="importing SGLang reads some 5,700 files: 85 to 107 s from a cold Lustre against 20 s from "
    "a tmpfs, in a published record, for each start",
    cure="keep the environment on a local disk, or unpack it from one archive at job start",
)
def sglang_on_a_network_file_system(facts: Facts) -> Iterator[Seen]:
    """Judge that SGLang is imported from a local disk."""
    place = facts.places.get("sglang")
    if place is not None and places.is_network(place):
        yield Seen(f"SGLang lies on {place.file_system}")


@judge(
    "risks",
    why="what doctor could not look at may be what ends the server",
    cure="sglang-mi300a doctor --record FILE, and send the file: doctor itself is at fault",
    anywhere=True,
)
def not_looked_at(facts: Facts) -> Iterator[Seen]:
    """Judge that doctor could look at everything."""
    for topic, error in facts.failures.items():
        yield Seen(f"{topic}: {error}")


@judge(
    "note",
    why="--numa-node starts ranks through a shell command that does not quote the interpreter",
    cure="leave --numa-node out, or make the environment where no folder has a space in its name",
    anywhere=True,
)
def interpreter_path_with_space(facts: Facts) -> Iterator[Seen]:
    """Judge that the interpreter's path has no space."""
    if facts.software.interpreter_has_space:
        yield Seen("a space in the path of the Python interpreter")
