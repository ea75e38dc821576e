"""A stand-in for ``torch.cuda.tunable`` on ROCm: same files, validators, and rewriting at exit.

Written from PyTorch's documentation and from what operators reported, not from this package's
reader: lines are split at LF and commas and nothing else, a file whose validators differ by a byte
is dropped whole and silently, a second row for a key is ignored, any solution is taken until a
product asks for it, products without a row are written down on demand, and where that is on from
the beginning no file is read.
"""

import os
from pathlib import Path

STACK = {
    "PT_VERSION": "2.9.0",
    "ROCM_VERSION": "7.0.0.0-38-9428210",
    "HIPBLASLT_VERSION": "100000-976b9c4a87",
    "GCN_ARCH_NAME": "gfx942:sramecc+:xnack-",
    "ROCBLAS_VERSION": "5.0.0.976b9c4a87",
}
CANDIDATES = {"Default", *(f"Gemm_Rocblas_{n}" for n in range(64)), *(
    f"Gemm_Hipblaslt_{n}" for n in range(64))}  # fmt: skip


class UnknownSolutionError(RuntimeError):
    """A row names a solution that the libraries do not have: torch ends the process there."""


class TunableOpOf213:
    """TunableOp as torch 2.13 has it: no ``write_file_on_exit``."""

    def __init__(self, environment, ordinal=0, validators=STACK):
        self._environment = environment
        self._ordinal = ordinal
        self._validators = dict(validators)
        self._results = {}
        self._read = False
        self._enabled = False
        self._tuning = True
        self._recording = False
        self._untuned = None
        self._recorded = set()

    def enable(self, value=True):
        self._enabled = value

    def is_enabled(self):
        return self._environment.get("PYTORCH_TUNABLEOP_ENABLED") == "1" or self._enabled

    def tuning_enable(self, value=True):
        self._tuning = value

    def tuning_is_enabled(self):
        return self._environment.get("PYTORCH_TUNABLEOP_TUNING") == "1" or self._tuning

    def record_untuned_enable(self, value=True):
        self._recording = value
        if not value:
            self._untuned = None

    def get_validators(self):
        return tuple(self._validators.items())

    def get_filename(self):
        name = self._environment.get("PYTORCH_TUNABLEOP_FILENAME", "tunableop_results.csv")
        if "%d" in name:
            return name.replace("%d", str(self._ordinal), 1)
        stem, dot, suffix = name.rpartition(".")
        return f"{stem}{self._ordinal}{dot}{suffix}"

    def get_results(self):
        return tuple((op, key, *value) for (op, key), value in self._results.items())

    def read_file(self, filename=None):
        self._read = True
        try:
            text = Path(filename or self.get_filename()).read_bytes().decode("latin-1")
        except OSError:
            return False
        seen, rows = {}, {}
        for line in text.split("\n"):
            parts = line.split(",")
            if parts[0] == "Validator" and len(parts) >= 3:
                seen[parts[1]] = parts[2]
            elif len(parts) >= 3:
                rows.setdefault(
                    (parts[0], parts[1]), (parts[2], float(parts[3] if len(parts) > 3 else 0))
                )
        if seen != self._validators:
            return False
        for key, value in rows.items():
            self._results.setdefault(key, value)
        return True

    def product(self, n, k, m):
        """Return the solution that a bf16 ``F.linear`` would run."""
        if not self.is_enabled():
            return "Default"
        if not self._read and not self._recording:
            self.read_file()
        key = ("GemmTunableOp_BFloat16_TN", f"tn_{n}_{m}_{k}_ld_{k}_{k}_{n}")
        if self._recording and not self.tuning_is_enabled() and key not in self._results:
            self._record(key)
        solution, _ = self._results.get(key, ("Default", 0.0))
        if solution not in CANDIDATES:
            raise UnknownSolutionError(solution)
        return solution

    def _record(self, key):
        if self._untuned is None:
            name = os.environ.get("PYTORCH_TUNABLEOP_UNTUNED_FILENAME", "tunableop_untuned.csv")
            stem, dot, suffix = name.rpartition(".")
            self._untuned = Path(f"{stem}{self._ordinal}{dot}{suffix}")
            self._untuned.write_text("")
        if key not in self._recorded:
            self._recorded.add(key)
            with self._untuned.open("a") as file:
                file.write(",".join(key) + "\n")

    def _writes_at_exit(self):
        return self.tuning_is_enabled()

    def exit(self):
        """Do what the process does when it ends."""
        if self.is_enabled() and self._read and self._writes_at_exit():
            lines = [f"Validator,{name},{value}" for name, value in self._validators.items()]
            lines += [f"{op},{key},{a},{b}" for (op, key), (a, b) in self._results.items()]
            path = Path(self.get_filename())
            if os.access(path, os.W_OK) or not path.exists():  # as root a mode bit protects nothing
                path.write_text("\n".join(lines) + "\n")


class TunableOpOf29(TunableOpOf213):
    """TunableOp as torch 2.9 has it: it rewrites its file at exit even with tuning off."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._on_exit = True

    def write_file_on_exit(self, value):
        self._on_exit = value

    def _writes_at_exit(self):
        return self._on_exit
