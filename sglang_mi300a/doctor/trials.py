"""What may crash or hang, each tried in a process of its own with a bounded wait."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_mi300a import settings
from sglang_mi300a.doctor.facts import SeenByHip, Trial, Trials

HIP_SECONDS = 30.0
IMPORT_SECONDS = 300.0
"""Importing SGLang took 85 to 107 s from a cold Lustre in a published record."""

# hipDeviceAttributeIntegrated is 16 in hip_runtime_api.h of HIP 6 and 7.
HIP = """
import ctypes, json, sys
for name in sys.argv[1:]:
    try:
        hip = ctypes.CDLL(name)
        break
    except OSError as error:
        last = error
else:
    raise SystemExit(f"no HIP runtime: {last}")
count = ctypes.c_int()
code = hip.hipGetDeviceCount(ctypes.byref(count))
if code:
    raise SystemExit(f"hipGetDeviceCount gives error {code}")
rows = []
for number in range(count.value):
    free, total, flag = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
    code = (hip.hipSetDevice(number)
            or hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
            or hip.hipDeviceGetAttribute(ctypes.byref(flag), 16, number))
    if code:
        raise SystemExit(f"device {number} gives error {code}")
    rows.append([free.value, total.value, bool(flag.value)])
print(json.dumps(rows))
"""
TORCH = """
import json, torch
devices = [f"cuda:{n}" for n in range(torch.cuda.device_count())]
sums = [float((torch.ones(8, device=device) + 1).sum()) for device in devices]
assert all(value == 16 for value in sums), sums
print(json.dumps(len(sums)))
"""
SGLANG = """
import json, sglang.srt.server_args
print(json.dumps(1))
"""


def gather(*, has_devices: bool, torch_folder: Path | None, deep: bool) -> Trials:
    """Return how the trials ended.

    Args:
        has_devices: Whether there is an accelerator to open.
        torch_folder: Where torch is installed, whose HIP runtime is the one that counts.
        deep: Whether to import torch and SGLang too, which takes up to minutes.
    """
    hip, rows = Trial(), None
    if has_devices:
        libraries = [f"libamdhip64.so.{major}" for major in (7, 6)]
        if torch_folder is not None:
            libraries.insert(0, str(torch_folder / "lib/libamdhip64.so"))
        hip, rows = attempt(HIP, libraries, HIP_SECONDS)
    torch = sglang = Trial()
    if deep and has_devices:
        torch, _ = attempt(TORCH, (), IMPORT_SECONDS)
        sglang, _ = attempt(SGLANG, (), IMPORT_SECONDS)
    seen = tuple(SeenByHip(*row) for row in rows or ())
    return Trials(hip=hip, torch=torch, sglang=sglang, hip_devices=seen)


def attempt(program: str, arguments: Sequence[str], wait_s: float) -> tuple[Trial, Any]:
    """Run a Python program in a process of its own; return how it ended and the JSON it printed.

    Args:
        program: Source text; prints one line of JSON at its end.
        arguments: Its ``sys.argv[1:]``.
        wait_s: How long to wait before it is killed.
    """
    began = time.perf_counter()
    command = [sys.executable, "-c", program, *arguments]
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=wait_s,
            check=False,
            env=settings.child_environment({}),
        )
    except subprocess.TimeoutExpired:
        return Trial(f"no answer in {wait_s:g} s", round(time.perf_counter() - began, 1)), None
    took = round(time.perf_counter() - began, 1)
    if run.returncode < 0:
        return Trial(f"signal {-run.returncode}", took), None
    if run.returncode:
        lines = run.stderr.strip().splitlines()
        return Trial(lines[-1][:200] if lines else f"exit code {run.returncode}", took), None
    return Trial("fine", took), json.loads(run.stdout.strip().splitlines()[-1])
