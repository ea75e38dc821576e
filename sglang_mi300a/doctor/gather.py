"""All facts of this machine, and where the places that they speak of really are."""

from __future__ import annotations

import getpass
import importlib.util
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sglang_mi300a import artifact_manifest, device, settings
from sglang_mi300a.cli import launch
from sglang_mi300a.cli.plan import visible_devices
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
from sglang_mi300a.doctor.facts import Facts, Model
from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import aiter_locks, launch_copy

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
    """Return what was seen, and the real paths of its places."""
    root = question.root
    tp = question.tp or _tp_of(question.model)
    found = device.accelerators(root / "sys")
    visible = visible_devices(
        settings.get("ROCR_VISIBLE_DEVICES"),
        settings.get("HIP_VISIBLE_DEVICES") or settings.get("CUDA_VISIBLE_DEVICES"),
    )
    num_visible = len(found) if visible is None else len([n for n in visible if n < len(found)])
    paths = _paths(question.model)
    stores = (settings.kernel_cache_dir(), launch_copy.kept_store(settings.local_dir()).root)
    seen = Facts(
        tp=tp,
        machine=machine.machine(root),
        software=software.gather(root),
        devices=devices.gather(root),
        memory=memory.gather(root, visible=visible, num_ranks=tp),
        cpus=machine.cpus(root),
        limits=machine.limits(root),
        environment=environment.gather(),
        places=places.gather(paths, root),
        jit=build_locks.compiled(paths["jit-cache"], stores),
        locks=build_locks.gather(
            paths["jit-cache"], paths["aiter-configs"], paths["torch-extensions"]
        ),
        tables=tuned_tables.gather(
            num_visible or tp, paths["state"] / "tables", found[0] if found else None
        ),
        model=_model(question, tp, visible, has_devices=bool(found)),
        ports={str(port): _is_free(port) for port in question.ports},
        trials=trials.gather(
            has_devices=bool(found), torch_folder=_package("torch"), deep=question.deep
        ),
    )
    return seen, paths


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
    words = {getpass.getuser(), host, host.split(".")[0], Path.home().name}
    if "model" in paths:
        words.add(paths["model"].name)
    return sorted(words - {"", "root", "localhost"})


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
    home = Path.home()
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
