"""Tuning tables that would be read: TunableOp's, AITER's, and this package's own.

Source of TunableOp's format and file names: PyTorch ``aten/src/ATen/cuda/tunable/README.md``. The
device's number replaces ``%d`` in the name, or else is put before the suffix.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from pathlib import Path

from sglang_mi300a import settings
from sglang_mi300a.device import Accelerator
from sglang_mi300a.doctor.facts import TableFile, Tables, TunedFile
from sglang_mi300a.errors import UserError
from sglang_mi300a.gemm import staging

TUNABLE_DEFAULT = "tunableop_results.csv"
AITER_TABLE = "AITER_CONFIG_GEMM_BF16"
AITER_COLUMNS = ("gfx", "cu_num", "M", "N", "K", "libtype", "solidx", "us")
"""Columns that AITER reads of a table of bf16 GEMMs."""
_AITER_KEY = ("gfx", "cu_num", "M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle")


def gather(num_devices: int, own: Path, device: Accelerator | None) -> Tables:
    """Return the tables that the environment leads to.

    Args:
        num_devices: Devices of which each reads a table of its own.
        own: Folder in which this package applies tables.
        device: One of them; None where there is none.
    """
    tunable: tuple[TunedFile, ...] = ()
    if settings.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        template = settings.get("PYTORCH_TUNABLEOP_FILENAME") or TUNABLE_DEFAULT
        tunable = tuple(tuned_file(tunable_path(template, n)) for n in range(num_devices))
    others = []
    if given := settings.get(AITER_TABLE):
        for number, part in enumerate(given.split(os.pathsep)):
            others.append(TableFile(f"{AITER_TABLE}[{number}]", aiter_fault(Path(part))))
    if (own / staging.LINK).is_symlink():
        others.append(TableFile("the applied table of dense products", _own_fault(own, device)))
    return Tables(tunable, tuple(others))


def tunable_path(template: str, ordinal: int) -> Path:
    """Return TunableOp's file for one device."""
    if "%d" in template:
        return Path(template.replace("%d", str(ordinal), 1))
    path = Path(template)
    return path.with_name(f"{path.stem}{ordinal}{path.suffix}")


def tuned_file(path: Path) -> TunedFile:
    """Return what one of TunableOp's files holds."""
    try:
        data = path.read_bytes()
    except OSError:
        return TunedFile()
    lines = data.decode("utf-8", "replace").splitlines()
    validators = {}
    for line in lines:
        kind, _, rest = line.partition(",")
        if kind == "Validator":
            name, _, value = rest.partition(",")
            validators[name] = value.strip()
    rows = [line for line in lines if line and not line.startswith("Validator,")]
    return TunedFile(
        exists=True,
        num_rows=len(rows),
        has_carriage_return=b"\r" in data,
        writable=os.access(path, os.W_OK),
        sha256=hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16],
        validators=validators,
    )


def aiter_fault(path: Path) -> str:
    """Return why AITER would misread a table of bf16 GEMMs, or ""."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        return f"not readable ({error.strerror})"
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start}"
    if "\r" in text:
        return "carriage returns at line ends"
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = rows[0].keys() if rows else []
    if missing := [name for name in AITER_COLUMNS if name not in columns]:
        return f"no column {', '.join(missing)}"
    if bad := sum(not _is_time(row["us"]) for row in rows):
        return f"{bad} rows without a finite time"
    keys = [tuple(row.get(name) for name in _AITER_KEY) for row in rows]
    if twice := len(keys) - len(set(keys)):
        return f"{twice} shapes twice"
    return ""


def _is_time(text: str | None) -> bool:
    try:
        return 0 < float(text or "") < math.inf
    except ValueError:
        return False


def _own_fault(own: Path, device: Accelerator | None) -> str:
    try:
        applied = staging.current(own)
    except UserError as error:
        return error.found
    if applied is None or device is None:
        return ""
    return "; ".join(applied.table.misfits(device, applied.table.software))
