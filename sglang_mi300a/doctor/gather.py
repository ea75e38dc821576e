"""All facts of this machine, and where the places that they speak of really are."""

from __future__ import annotations

import getpass
import importlib.util
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sglang_mi300a import artifact_manifest, device, settings
from sglang_mi300a.cli import launch
from sglang_mi300a.doctor import (
    build_locks,
    devices,
    environment,
    machine,
    memory,
    model,
    places,
    software,
    trials,
    tuned_tables,
)
from sglang_mi300a.doctor.facts import (
    Cpus,
    Devices,
    Facts,
    JitCache,
    Limits,
    Machine,
    Memory,
    Model,
    Place,
    Software,
    Tables,
    Trials,
)
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import aiter_locks, launch_copy

Found = TypeVar("Found")

DEFAULT_TP = 4
DEFAULT_PORT = 30000
"""SGLang's."""


@dataclass(frozen=True)
class Question:
    """What is to be looked at.

    Attributes:
        model: Model directory, or None.
        preset: With which it is to be served.
        tp: Ranks; None: the artifact's, else 4.
        ports: That a server is to listen on.
        deep: Whether to try what takes up to minutes.
        root: Directory that stands for ``/``.
    """

    model: Path | None = None
    tp: int | None = None
    ports: Sequence[int] = field(default=(DEFAULT_PORT,))
    deep: bool = False
    preset: str = "tuned"
    root: Path = Path("/")


def facts(question: Question) -> tuple[Facts, dict[str, Path]]:
    """Return what was seen, and the real paths of its places.

    What cannot be looked at is told in the facts and keeps nothing else from being looked at.
    """
    root, shell = question.root, environment.gather()
    tp = question.tp or _tp_of(question.model)
    failures: dict[str, str] = {}

    def tried(topic: str, look: Callable[[], Found], otherwise: Found) -> Found:
        try:
            return look()
        except Exception as error:
            failures[topic] = f"{type(error).__name__}: {error}"
            return otherwise

    nothing: list[device.Accelerator] = []
    found = tried("accelerators", lambda: device.accelerators(root / "sys"), nothing)
    visible = environment.visible(shell, len(found))
    num_visible = len(found) if visible is None else len(visible)
    paths = _paths(question.model)
    folders = [paths[name] for name in ("jit-cache", "aiter-configs", "torch-extensions")]
    stores = (settings.kernel_cache_dir(), launch_copy.kept_store(settings.local_dir()).root)
    one = found[0] if found else None
    nowhere: list[Place] = []
    seen = Facts(
        tp=tp,
        machine=tried("machine", lambda: machine.machine(root), Machine()),
        software=tried("software", lambda: software.gather(root), Software()),
        devices=tried("devices", lambda: devices.gather(root), Devices()),
        memory=tried(
            "memory", lambda: memory.gather(root, visible=visible, num_ranks=tp), Memory()
        ),
        cpus=tried("cpus", lambda: machine.cpus(root), Cpus()),
        limits=tried("limits", lambda: machine.limits(root), Limits()),
        environment=shell,
        places={
            name: place
            for name, path in paths.items()
            for place in tried(f"place {name}", partial(_place, name, path, root), nowhere)
        },
        jit=tried("jit", lambda: build_locks.compiled(folders[0], stores), JitCache()),
        locks=tried("locks", lambda: build_locks.gather(*folders), ()),
        tables=tried(
            "tables",
            lambda: tuned_tables.gather(num_visible or tp, paths["state"] / "tables", one),
            Tables(),
        ),
        model=tried("model", lambda: _model(question, tp, visible, has_devices=bool(found)), None),
        ports={str(port): _is_free(port) for port in question.ports},
        trials=tried(
            "trials",
            lambda: trials.gather(
                has_devices=bool(found), torch_folder=_package("torch"), deep=question.deep
            ),
            Trials(),
        ),
    )
    return replace(seen, failures=failures), paths


def _place(name: str, path: Path, root: Path) -> list[Place]:
    return list(places.gather({name: path}, root).values())


def _model(
    question: Question, tp: int, visible: list[int] | None, *, has_devices: bool
) -> Model | None:
    if question.model is None:
        return None
    found = model.gather(question.model, tp, probe=question.deep)
    if not has_devices or found.fault:
        return found
    lacks = model.plan_fault(question.model, tp, question.preset, question.root, visible)
    return replace(found, plan_fault=lacks)


def private_words(paths: dict[str, Path]) -> list[str]:
    """Return what must not be in a record: names of user, host and home, and parts of paths."""
    host = socket.gethostname()
    words = {_user(), host, host.split(".")[0], _home().name}
    if "model" in paths:
        words.add(paths["model"].name)
    return sorted(words - {"", "root", "localhost"})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container in which this user has no name
        return ""


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _tp_of(path: Path | None) -> int:
    if path is not None and artifact_manifest.is_artifact(path):
        try:
            return artifact_manifest.read(path).tp
        except UserError:  # the model's facts say what is wrong with it
            return DEFAULT_TP
    return DEFAULT_TP


def _is_free(port: int) -> bool:
    try:
        launch.check_port("127.0.0.1", port)
    except UserError:
        return False
    return True


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    locations = found.submodule_search_locations if found else None
    return Path(next(iter(locations))) if locations else None


def _paths(model_path: Path | None) -> dict[str, Path]:
    home = _home()
    found = {
        "aiter-configs": aiter_locks.CONFIG_DIR,
        "jit-cache": _given("AITER_JIT_DIR") or _aiter_jit(home),
        "local": settings.local_dir(),
        "shm": Path("/dev/shm"),
        "state": settings.state_dir(),
        "temporary": Path(tempfile.gettempdir()),
        "torch-extensions": _given("TORCH_EXTENSIONS_DIR") or home / ".cache/torch_extensions",
        "triton-cache": _given("TRITON_CACHE_DIR") or home / ".triton/cache",
    }
    if (sglang := _package("sglang")) is not None:
        found["sglang"] = sglang
    if model_path is not None:
        found["model"] = model_path.absolute()
    return found


def _given(variable: str) -> Path | None:
    value = settings.get(variable)
    return Path(value) if value else None


def _aiter_jit(home: Path) -> Path:
    """Return where AITER builds: in its own package if that is writable, else at home."""
    package = _package("aiter")
    if package is not None and places.gather({"jit": package / "jit"})["jit"].writable:
        return package / "jit"
    return home / ".aiter/jit"
