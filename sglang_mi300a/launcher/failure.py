"""What the launcher's core refuses, as exceptions."""

from __future__ import annotations

from typing import NoReturn

from sglang_mi300a.errors import UserError

Three = tuple[int, int, int]

# Status numbers of csrc/launcher/launcher.h.
OK = 0
NO_RUNTIME = 1
TWO_RUNTIMES = 2
INCOMPLETE_RUNTIME = 3
BAD_CALL = 4
HIP_ERROR = 5

_RUNTIMES = {
    NO_RUNTIME: (
        "one that is mapped in the process (a ROCm build of torch brings it), "
        "libamdhip64.so.7 or libamdhip64.so.6",
        "run where ROCm is installed, with a ROCm build of torch",
    ),
    TWO_RUNTIMES: (
        "one in a process: with two, streams of one are garbage to the other",
        "take the directory of the one that is not torch's off LD_LIBRARY_PATH and LD_PRELOAD",
    ),
    INCOMPLETE_RUNTIME: ("ROCm 6 or 7", "install a supported ROCm"),
}


class LauncherError(RuntimeError):
    """HIP refused a call. The four facts are kernel, grid, code and text.

    Attributes:
        call: The HIP function.
        kernel: Name of the kernel; "" where the call concerns none.
        grid: Workgroups by dimension; zeros where nothing was launched.
        block: Threads of a workgroup by dimension.
        code: HIP's error code.
        name: Its name, ``hipErrorLaunchFailure``.
        text: HIP's own words.
    """

    def __init__(
        self, call: str, kernel: str, grid: Three, block: Three, code: int, name: str, text: str
    ) -> None:
        self.call = call
        self.kernel = kernel
        self.grid = grid
        self.block = block
        self.code = code
        self.name = name
        self.text = text
        self._facts = (call, kernel, grid, block, code, name, text)
        of = f" of kernel {kernel}" if kernel else ""
        shape = f", grid {_by(grid)} of {_by(block)} threads" if any(grid) else ""
        super().__init__(f"{call}{of}{shape}: HIP error {code} ({name}): {text}")

    def __reduce__(self) -> tuple[object, ...]:
        return (LauncherError, self._facts)


def raise_for(
    status: int,
    call: str,
    code: int,
    name: str,
    text: str,
    kernel: str,
    grid: Three,
    block: Three,
) -> NoReturn:
    """Raise what a status of the core means.

    Raises:
        LauncherError: A HIP function failed.
        UserError: Anything else: no usable HIP runtime, or a bad argument.
    """
    if status == HIP_ERROR:
        raise LauncherError(call, kernel, grid, block, code, name, text)
    if status in _RUNTIMES:
        allowed, do = _RUNTIMES[status]
        raise UserError("HIP runtime", found=text, allowed=allowed, do=do)
    found, _, allowed = text.partition("; ")
    raise UserError(
        f"kernel {kernel}" if kernel else "launcher",
        found=found,
        allowed=allowed or "what csrc/launcher/launcher.h says",
        do="correct the call",
    )


def _by(sizes: Three) -> str:
    return " x ".join(map(str, sizes))
