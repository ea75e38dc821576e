"""What stock SGLang must be told to serve Qwen3.5-MoE on a CPU, as data with a reason a line.

Pool sizes, concurrency and the number of drafts are the preset's business and are not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.errors import UserError

Value = str | bool


def standins_path() -> Path:
    """Return the folder that must stand first on PYTHONPATH, in the launcher and its children."""
    return Path(__file__).with_name("standins")


@dataclass(frozen=True)
class Field:
    """One field of SGLang's ``ServerArgs``.

    Attributes:
        name: The field.
        value: Its value.
        why: What happens otherwise.
        with_draft: True: only with MTP. False: only without. None: always.
    """

    name: str
    value: Value
    why: str
    with_draft: bool | None = None


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: The variable.
        why: What happens otherwise.
        read: When it is read, and so by when it must be set.
    """

    name: str
    why: str
    read: str


FIELDS: tuple[Field, ...] = (
    Field("device", "cpu", "with no accelerator SGLang asks for one unless told"),
    Field(
        "disable_overlap_schedule",
        True,
        "overlap scheduling of a hybrid model needs state buffers that SGLang has for accelerators "
        "only; it refuses to start",
    ),
    Field(
        "attention_backend",
        "torch_native",
        "the default for a CPU is intel_amx, whose operators are references here; this one is "
        "SGLang's own torch code",
        with_draft=False,
    ),
    Field(
        "prefill_attention_backend",
        "intel_amx",
        "the only attention for a CPU that SGLang drafts and verifies with; given through the two "
        "split fields, because the common one falls back to torch_native where AMX is off",
        with_draft=True,
    ),
    Field(
        "decode_attention_backend",
        "intel_amx",
        "as prefill_attention_backend",
        with_draft=True,
    ),
)

VARIABLES: tuple[Variable, ...] = (
    Variable(
        "SGLANG_USE_CPU_ENGINE",
        "without it SGLang takes the kernels of an accelerator even with device cpu",
        "while SGLang is imported; the stand-ins' sitecustomize sets it",
    ),
    Variable(
        "OMP_NUM_THREADS",
        "with more threads than one a rank, small operators were measured 5 to 60 times slower",
        "while torch is imported; the stand-ins' sitecustomize sets it",
    ),
    Variable(
        "TORCH_COMPILE_DISABLE",
        "SGLang compiles some small functions at their first call, which needs a C++ compiler and "
        "holds up the first requests for seconds; on tiny models nothing is gained",
        "while torch is imported; the stand-ins' sitecustomize sets it",
    ),
    Variable(
        "SGLANG_CPU_OMP_THREADS_BIND",
        "with more ranks than NUMA nodes SGLang refuses to start unless each rank is given its "
        "cores",
        "when a rank starts; set before the launcher starts ranks",
    ),
    Variable(
        "SGLANG_MAMBA_CONV_DTYPE",
        "the convolution's state is bfloat16 whatever the model's dtype; at float32 that alone "
        "changes tokens",
        "when a rank sizes its pools; set before the launcher starts ranks",
    ),
)

DTYPES = ("float32", "bfloat16")


def server_fields(tp_size: int, with_draft: bool) -> dict[str, Value | int]:
    """Return the ``ServerArgs`` fields that the CPU engine needs.

    Args:
        tp_size: Tensor-parallel ranks.
        with_draft: Whether MTP drafts.
    """
    fields: dict[str, Value | int] = {
        each.name: each.value for each in FIELDS if each.with_draft in (None, with_draft)
    }
    fields["tp_size"] = tp_size
    return fields


def environment(tp_size: int, cpus: Sequence[int], dtype: str) -> dict[str, str]:
    """Return the environment variables that the CPU engine needs; all before SGLang is imported.

    Args:
        tp_size: Tensor-parallel ranks.
        cpus: Cores this process may run on (``os.sched_getaffinity(0)``).
        dtype: The model's ``--dtype``, one of :data:`DTYPES`.

    Raises:
        UserError: No cores, or a dtype that the CPU references are not tested with.
    """
    if dtype not in DTYPES:
        raise UserError(
            "--dtype",
            found=dtype,
            allowed=" or ".join(DTYPES),
            do="pass --dtype float32 (exact) or --dtype bfloat16 (as on the accelerator)",
        )
    values = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": threads_bind(tp_size, cpus),
        "SGLANG_MAMBA_CONV_DTYPE": dtype,
    }
    return {each.name: values[each.name] for each in VARIABLES}


def threads_bind(tp_size: int, cpus: Sequence[int]) -> str:
    """Return one field of cores for each rank: ``0|1``; ranks beyond the cores share, ``0|1|0|1``.

    Args:
        tp_size: Tensor-parallel ranks.
        cpus: Cores this process may run on.

    Raises:
        UserError: There are no cores.
    """
    ordered = sorted(set(cpus))
    if not ordered:
        raise UserError(
            "cores of this process",
            found="none",
            allowed="at least one",
            do="start the server with a CPU affinity that holds a core",
        )
    return "|".join(str(ordered[rank % len(ordered)]) for rank in range(tp_size))
