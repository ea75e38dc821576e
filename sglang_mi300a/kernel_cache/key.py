"""What a compiled kernel depends on. Two machines may share one exactly where all of it is equal.

AITER itself keys nothing: a module of another version, torch or Python is imported as it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sglang_mi300a import settings
from sglang_mi300a.device import Accelerator
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache.aiter_install import AiterInstall

SCHEMA = 1
DIGEST_LENGTH = 32
"""Hexadecimal digits of a key's digest: half of a SHA-256, enough to never meet."""


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """Everything that decides a compiled module's bytes, or whether it can be loaded.

    Attributes:
        aiter_version: AITER's own version.
        aiter_commit: Its git commit, where the install says one, or "".
        aiter_source: SHA-256 over its builder, recipes and C++ sources.
        rocm: HIP version of the compiler, as ``hipconfig --version`` prints it.
        arch: ``gfx942``.
        num_cus: Visible compute units; AITER compiles some kernels for their number.
        torch: Version, git commit and HIP version of torch: its C++ ABI.
        python: ABI tag, ``cpython-310-x86_64-linux-gnu``.
        switches: Environment variables that AITER's builder reads, where they are set.
        modules: Names of the modules and variants that the preset needs.
    """

    aiter_version: str
    aiter_commit: str
    aiter_source: str
    rocm: str
    arch: str
    num_cus: int
    torch: str
    python: str
    switches: Mapping[str, str]
    modules: tuple[str, ...]

    def to_data(self) -> dict[str, object]:
        """Return it as plain JSON values."""
        return {**asdict(self), "switches": dict(self.switches), "modules": list(self.modules)}

    @classmethod
    def from_data(cls, data: object, where: str) -> CacheKey:
        """Read a key back.

        Args:
            data: What :meth:`to_data` gave.
            where: Where it was found, for the refusal.

        Raises:
            UserError: It is no key of this schema.
        """
        if not isinstance(data, dict) or set(data) != {field.name for field in fields(cls)}:
            raise _bad_key(where, f"no key ({str(data)[:60]!r})")
        texts = {k: v for k, v in data.items() if k not in ("num_cus", "switches", "modules")}
        switches, modules = data["switches"], data["modules"]
        fits = (
            all(isinstance(value, str) for value in texts.values())
            and isinstance(data["num_cus"], int)
            and isinstance(switches, dict)
            and all(isinstance(part, str) for pair in switches.items() for part in pair)
            and isinstance(modules, list)
            and all(isinstance(name, str) for name in modules)
        )
        if not fits:
            raise _bad_key(where, "values of another type")
        return cls(**{**data, "modules": tuple(modules)})

    @property
    def digest(self) -> str:
        """The key's name: a hash over all of it."""
        text = json.dumps([SCHEMA, self.to_data()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]

    def differences(self, other: CacheKey) -> list[str]:
        """Return what differs, by name: ``rocm: 7.0.1 here, 6.4.3 there``."""
        mine, theirs = self._facts(), other._facts()
        return [
            f"{name}: {_shown(mine.get(name))} here, {_shown(theirs.get(name))} there"
            for name in {**mine, **theirs}
            if mine.get(name) != theirs.get(name)
        ]

    def _facts(self) -> dict[str, str]:
        """Return every part by name, each switch and each module as a part of its own."""
        facts = {k: str(v) for k, v in self.to_data().items() if k not in ("switches", "modules")}
        facts.update({f"switch {name}": value for name, value in self.switches.items()})
        facts.update({f"module {name}": "needed" for name in self.modules})
        return facts


def _shown(value: str | None) -> str:
    if value is None:
        return "not"
    return (value[:40] + "...") if len(value) > 43 else value or "not known"


def of_this_machine(
    install: AiterInstall, arch: str, num_cus: int, modules: tuple[str, ...]
) -> CacheKey:
    """Return the key of what would be compiled here.

    Raises:
        UserError: AITER, torch or ROCm cannot be read.
    """
    return CacheKey(
        aiter_version=install.version,
        aiter_commit=install.commit,
        aiter_source=install.source_digest(),
        rocm=rocm_version(),
        arch=arch,
        num_cus=num_cus,
        torch=torch_build(),
        python=str(sysconfig.get_config_var("SOABI")),
        switches=settings.aiter_switches(),
        modules=tuple(sorted(modules)),
    )


def target(found: list[Accelerator], arch: str | None, num_cus: int | None) -> tuple[str, int]:
    """Return the arch and the compute units to compile for.

    Args:
        found: This node's accelerators.
        arch: What the user says instead (``--no-gpu``).
        num_cus: The same, compute units.

    Raises:
        UserError: Neither is there, or the accelerators differ.
    """
    if arch is not None and num_cus is not None:
        return arch, num_cus
    kinds = sorted({(one.arch, one.num_visible_cus) for one in found})
    if len(kinds) != 1:
        seen = ", ".join(f"{a} with {n} CUs" for a, n in kinds) or "no AMD accelerator"
        raise UserError(
            "device",
            found=seen,
            allowed="accelerators of one kind",
            do="to compile for one that is not here: --no-gpu --arch gfx942 --cus 228",
        )
    return kinds[0]


def rocm_version() -> str:
    """Return the HIP version of the ROCm at hand.

    Raises:
        UserError: There is no ``hipconfig``, or it fails.
    """
    program = shutil.which("hipconfig") or str(rocm_home() / "bin/hipconfig")
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            program,
            found=f"not usable ({error})",
            allowed="hipconfig of a ROCm installation, which names the compiler's version",
            do="run this where ROCm is, or say where with ROCM_PATH",
        ) from error
    return done.stdout.split()[-1] if done.stdout.split() else ""


def rocm_home() -> Path:
    """Return where ROCm is said to be."""
    return Path(settings.get("ROCM_HOME") or settings.get("ROCM_PATH") or "/opt/rocm")


def torch_build() -> str:
    """Return version, commit and HIP version of torch, without importing it.

    Raises:
        UserError: torch is not there.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise UserError(
            "torch",
            found="not importable",
            allowed="the torch that will load the modules: they are compiled against it",
            do="run this inside SGLang's ROCm image",
        )
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^(__version__|git_version|hip)\b.*?= '([^']+)'", text, re.MULTILINE))
    return " ".join(rows.get(name, "-") for name in ("__version__", "git_version", "hip"))


def _bad_key(where: str, found: str) -> UserError:
    return UserError(
        where,
        found=found,
        allowed=f"a key of schema {SCHEMA}",
        do="it is damaged or of another version of this package: make it again with "
        "`sglang-mi300a kernel-cache build`",
    )
