"""Every environment variable that the package reads or writes, in one place.

The launcher decides (model, device, preset) and writes the result as JSON into one variable,
:data:`RESOLVED`; its children inherit it. A rank without that variable registers nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import UserError

SWITCH = "SGLANG_MI300A"
"""Preset by name where the flag ``--mi300a`` is not given; ``0`` or ``off`` turns all off."""
RESOLVED = "SGLANG_MI300A_RESOLVED"
"""JSON of :class:`Resolved`, written by the launcher for its ranks. Not for users."""
STATE_DIR = "SGLANG_MI300A_STATE_DIR"
"""Where the package keeps what it makes on this machine; default ``~/.local/state/...``."""

RUN_DIR = "SGLANG_MI300A_RUN_DIR"
"""Where ranks leave their boot reports; default a temporary directory, removed at the end."""

ALLOW_RUNG = "SGLANG_MI300A_ALLOW_RUNG"
"""Lowest rung of the expert layer that may serve on gfx942: ``triton`` or ``torch``; default
``hip`` alone."""

SHARED_EXPERT = "SGLANG_MI300A_SHARED_EXPERT"
"""``apart`` leaves the shared expert to SGLang; default ``together``: in the expert launches."""

MEMORY_CHECK = "SGLANG_MI300A_MEMORY_CHECK"
"""``refuse`` (the default): a plan that does not fit stops the server; ``warn``: it is said."""
MEMORY_CHECKS = ("refuse", "warn")
SIMULATED_NODE = "SGLANG_MI300A_SIMULATED_NODE"
"""A directory that stands for ``/`` of a recorded node; the CPU engine then takes its memory for
that of its own accelerators. For tests and rehearsals, refused on an accelerator."""

ALLOW_UNTUNED = "SGLANG_MI300A_ALLOW_UNTUNED"
"""``1``: serve with stock's choices of dense products where the applied table does not fit."""

DENSE_KERNELS = "SGLANG_MI300A_DENSE_KERNELS"
"""``library`` leaves dense products of few tokens to the library; default ``own``: our kernels,
where no applied table says otherwise."""

WARM_UP = "SGLANG_MI300A_WARM_UP"
"""``0``: no warm-up of this package's; SGLang then sends its own single request. Default ``1``."""
WARM_UP_SECONDS = "SGLANG_MI300A_WARM_UP_SECONDS"
"""How long the warm-up may take before it stops the server; default 1800."""
BAD_DRAFTS = "SGLANG_MI300A_BAD_DRAFTS"
"""``refuse``: drafts that the warm-up sees hardly ever accepted stop the server; default ``warn``:
it is said."""

GOLDEN = "SGLANG_MI300A_GOLDEN"
"""What a start does with golden logits that lie beside the weights. ``refuse`` (default): a server
that is far beyond rounding stops. ``warn``: it is said. ``off``: nothing is compared."""
GOLDEN_CHOICES = ("refuse", "warn", "off")

UNTUNED_FILE = "PYTORCH_TUNABLEOP_UNTUNED_FILENAME"
"""Where TunableOp writes products that it has no row for, while it records them."""

ACCUMULATE = "SGLANG_MI300A_ACCUMULATE"
"""``TOKENS/PASSES``: prompts wait for so many new tokens in the queue, or so many passes; ``0``:
they do not wait."""

KERNEL_CACHE = "SGLANG_MI300A_KERNEL_CACHE"
"""Store of compiled kernels, may be shared and read-only; default one in the state directory."""
LOCAL_DIR = "SGLANG_MI300A_LOCAL_DIR"
"""Where this node's copies, locks and logs of kernels lie: a local disk; default in ``/tmp``."""

AITER_SWITCHES = (
    "AITER_ASM_DEBUG", "AITER_DEBUG", "AITER_DISABLE_KERNARG_PRELOAD", "AITER_ENABLE_EXPERIMENTAL",
    "AITER_FP4x2", "AITER_META_DIR", "CK_DIR", "CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT",
    "CK_TILE_ATTENTION_USE_SOFTSIGN_ASM", "CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT", "ENABLE_CK",
    "ENABLE_ROPE_POSITIONS_INT32", "HIP_CLANG_PATH", "HIP_KITTENS_DIR",
)  # fmt: skip
"""What AITER's builder reads and compiles in."""

OFF_VALUES = ("off", "0", "")
SCHEMA = 1


@dataclass(frozen=True)
class Resolved:
    """What the launcher decided, as every rank sees it.

    Attributes:
        preset: Name of the preset.
        device: ``"cpu"`` (SGLang's CPU engine) or ``"gfx942"``.
        model_path: Directory being served.
        tp_size: Tensor-parallel ranks.
        ep_size: Expert-parallel ranks among them.
        num_local_ranks: Rank processes this launcher starts.
        with_draft: Whether MTP drafts with the model's own draft layer.
        kv_tokens: KV pool size, tokens per rank, exactly.
        state_slots: Linear-attention state slots per rank, exactly.
        max_running_requests: Concurrent requests, exactly.
        load_options: Options of the weight loader (``verify``, ``ring_bytes``, ``threads``).
        expert_layout: Id of the layout of the expert weights.
        allowed_rung: Lowest rung of the expert layer that may be used.
        shared_expert: ``"together"`` with the routed experts where the rung can, or ``"apart"``.
        moe_intermediate: ``"float32"``, or ``"bfloat16"`` to round the expert intermediate as the
            kernels do.
        run_dir: Directory in which ranks leave their boot reports.
        memory: What each rank may take of its APU, as the ``pools`` room writes it; empty where
            no accelerator's memory is planned.
        gemm: Dense products and the table that serves them, as the ``gemm`` room writes it.
        schema: Version of this record.
    """

    preset: str
    device: str
    model_path: str
    tp_size: int
    ep_size: int
    num_local_ranks: int
    with_draft: bool
    kv_tokens: int
    state_slots: int
    max_running_requests: int
    run_dir: str
    load_options: dict[str, Any] = field(default_factory=dict)
    expert_layout: str = "plain/1"
    allowed_rung: str = "torch"
    shared_expert: str = "together"
    moe_intermediate: str = "float32"
    memory: dict[str, Any] = field(default_factory=dict)
    gemm: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Resolved:
        """Read a record.

        Raises:
            UserError: The text is not such a record, or is of another version.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise _bad_record(f"no JSON ({error})") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise _bad_record(f"{text[:60]!r}")
        known = {f.name for f in fields(cls)}
        if set(data) - known:
            raise _bad_record(f"unknown keys {sorted(set(data) - known)}")
        try:
            return cls(**data)
        except TypeError as error:
            raise _bad_record(str(error)) from error


def _bad_record(found: str) -> UserError:
    return UserError(
        f"environment variable {RESOLVED}",
        found=found,
        allowed=f"a record of schema {SCHEMA} written by this version's launcher",
        do=f"unset {RESOLVED}; it is set by the launcher and not by hand",
    )


def switch() -> str | None:
    """Return the preset named by the environment; None if not given, ``"off"`` if turned off."""
    value = os.environ.get(SWITCH)
    if value is None:
        return None
    return "off" if value.strip().lower() in OFF_VALUES else value.strip()


def _choice(name: str, values: tuple[str, ...]) -> str:
    """Return a variable's value, the first of ``values`` where it is not set."""
    value = os.environ.get(name) or values[0]
    if value not in values:
        raise UserError(
            f"environment variable {name}",
            found=repr(value),
            allowed=", ".join(values),
            do=f"set one of them, or unset {name}",
        )
    return value


def allowed_rung() -> str:
    """Return the lowest rung of the expert layer that the user allows on gfx942.

    Raises:
        UserError: The environment names another.
    """
    return _choice(ALLOW_RUNG, ("hip", "triton", "torch"))


def shared_expert() -> str:
    """Return whether the shared expert runs ``together`` with the routed ones, or ``apart``.

    Raises:
        UserError: The environment says something else.
    """
    return _choice(SHARED_EXPERT, ("together", "apart"))


def dense_kernels() -> str:
    """Return whose kernels make dense products of few tokens: ``own`` or ``library``.

    Raises:
        UserError: The environment says something else.
    """
    return _choice(DENSE_KERNELS, ("own", "library"))


def warm_up() -> bool:
    """Return whether a server warms itself up before it listens.

    Raises:
        UserError: The environment says something else than 0 or 1.
    """
    return _choice(WARM_UP, ("1", "0")) == "1"


def refuses_bad_drafts() -> bool:
    """Return whether drafts that are hardly ever accepted stop the server.

    Raises:
        UserError: The environment says something else.
    """
    return _choice(BAD_DRAFTS, ("warn", "refuse")) == "refuse"


def golden() -> str:
    """Return what a start does with golden logits: one of :data:`GOLDEN_CHOICES`.

    Raises:
        UserError: The environment says something else.
    """
    return _choice(GOLDEN, GOLDEN_CHOICES)


def warm_up_seconds() -> float:
    """Return how long the warm-up may take.

    Raises:
        UserError: The environment holds no number of seconds above 0.
    """
    text = os.environ.get(WARM_UP_SECONDS) or "1800"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UserError(
            f"environment variable {WARM_UP_SECONDS}",
            found=repr(text),
            allowed="seconds, above 0",
            do=f"set a number such as 1800, or unset {WARM_UP_SECONDS}",
        )
    return seconds


def resolved() -> Resolved | None:
    """Return the launcher's decision, or None in a process that no launcher of ours started."""
    text = os.environ.get(RESOLVED)
    return Resolved.from_json(text) if text else None


def publish(record: Resolved) -> None:
    """Hand the decision to every child process started from now on."""
    os.environ[RESOLVED] = record.to_json()


def withdraw() -> None:
    """Take a decision back, so that children start without the package."""
    os.environ.pop(RESOLVED, None)


def set_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Set variables that are not set yet; return those that were."""
    added = {key: value for key, value in environment.items() if key not in os.environ}
    os.environ.update(added)
    return added


def memory_check() -> str:
    """Return what happens to a plan that does not fit: one of :data:`MEMORY_CHECKS`.

    Raises:
        UserError: The variable holds something else.
    """
    value = os.environ.get(MEMORY_CHECK, MEMORY_CHECKS[0])
    if value not in MEMORY_CHECKS:
        raise UserError(
            f"environment variable {MEMORY_CHECK}",
            found=repr(value),
            allowed=" or ".join(MEMORY_CHECKS),
            do="unset it, or set it to warn to start a server whose plan does not fit",
        )
    return value


def allow_untuned() -> bool:
    """Return whether a server may start although the applied gemm table does not fit."""
    return _choice(ALLOW_UNTUNED, ("0", "1")) == "1"


def simulated_node() -> Path | None:
    """Return the directory that stands for ``/`` of a recorded node; None: this machine is real."""
    given = os.environ.get(SIMULATED_NODE)
    return Path(given) if given else None


def cpu_engine_asked() -> bool:
    """Return whether SGLang is told to run on its CPU engine."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


def given(names: Iterable[str]) -> dict[str, str]:
    """Return those of the named variables that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def get(name: str) -> str | None:
    """Return a variable that stock SGLang or ROCm reads, for reports and judgements."""
    return os.environ.get(name)


@contextmanager
def untuned_products_into(path: Path) -> Iterator[None]:
    """Let TunableOp write products without a row into a file; it looks for it at its first one.

    Args:
        path: TunableOp puts the device ordinal before its suffix.
    """
    before = os.environ.get(UNTUNED_FILE)
    os.environ[UNTUNED_FILE] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ[UNTUNED_FILE]
        else:
            os.environ[UNTUNED_FILE] = before


def child_environment(extra: Mapping[str, str], *, without: str = "") -> dict[str, str]:
    """Return this process's environment with ``extra`` set, for a program to be started.

    Args:
        extra: Variables to set.
        without: Variables that begin so are left out, if it is not empty.
    """
    kept = {k: v for k, v in os.environ.items() if not (without and k.startswith(without))}
    return {**kept, **extra}


def python_path() -> list[str]:
    """Return the folders of PYTHONPATH."""
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def python_path_with(first: Path) -> str:
    """Return PYTHONPATH with ``first`` in front, once."""
    return os.pathsep.join([str(first), *(part for part in python_path() if part != str(first))])


def state_dir() -> Path:
    """Return the package's state directory of this user (not created here)."""
    given = os.environ.get(STATE_DIR)
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "sglang-mi300a"


def kernel_cache_dir() -> Path:
    """Return the store of compiled kernels (not created here)."""
    given = os.environ.get(KERNEL_CACHE)
    return Path(given) if given else state_dir() / "kernel-cache"


def local_dir() -> Path:
    """Return this user's directory on this node's own disk (not created here)."""
    given = os.environ.get(LOCAL_DIR)
    return Path(given) if given else Path(tempfile.gettempdir(), f"sglang-mi300a-{os.getuid()}")


def aiter_switches() -> dict[str, str]:
    """Return the variables that change what AITER compiles, where they are set."""
    return {name: os.environ[name] for name in AITER_SWITCHES if name in os.environ}


def replace_defaults(environment: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Set variables that are not set, or are set to what somebody else's default is.

    Args:
        environment: What to set.
        defaults: Values that no user chose, by name.

    Returns:
        Those that were set.
    """
    free = {k: v for k, v in environment.items() if os.environ.get(k) in (None, defaults.get(k))}
    os.environ.update(free)
    return free


def sglang_cache_defaults() -> dict[str, str]:
    """Return where SGLang 0.5.18 puts Triton's and Inductor's caches as it is imported.

    Source: ``sglang/srt/environ.py``, ``third_party_cache_defaults``.
    """
    base = os.path.expanduser(os.environ.get("SGLANG_CACHE_DIR") or "~/.cache/sglang")
    return {
        "TRITON_CACHE_DIR": os.path.join(base, "triton"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(base, "inductor"),
    }


def run_dir_given() -> bool:
    """Return whether the user named the directory for boot reports."""
    return RUN_DIR in os.environ


def new_run_dir() -> Path:
    """Return the directory for the boot reports of one launch: the user's, else a fresh one."""
    given = os.environ.get(RUN_DIR)
    if given:
        path = Path(given)
        path.mkdir(parents=True, exist_ok=True)
        for old in (*path.glob("rank-*.json"), *path.glob("launch.json")):
            old.unlink()
        return path
    return Path(tempfile.mkdtemp(prefix="sglang-mi300a-run-"))
