"""An AITER that keeps AITER's contract in directories, files and locks, and compiles in a moment.

The contract, read in AITER 0.1.7 and at the commit of SGLang's ROCm image: ``jit.core`` is imported
beside the ``aiter`` package; ``build_module`` takes the baton ``build/lock_M``, makes
``build/M/build/`` with a ``lock`` round its compiler, links ``build/M/build/M.so`` piece by piece,
and copies it to ``AITER_JIT_DIR/M.so``, in the open. Importing ``aiter`` itself fails here, as it
does without ROCm.
"""

import json
import struct
from pathlib import Path

from sglang_mi300a.kernel_cache import aiter_install, needed

CORE = """
import json, os, shutil, time

CK_DIR = "ck"
AITER_CSRC_DIR = "csrc"
_here = os.path.dirname(__file__)

def get_args_of_build(name):
    with open(os.path.join(_here, "optCompilerConfig.json")) as file:
        return {"srcs": [], "md_name": "", "blob_gen_cmd": "", **json.load(file)[name]}

def build_module(md_name, srcs, blob_gen_cmd, verbose=False):
    jit_dir = os.environ["AITER_JIT_DIR"]
    inside = os.path.join(jit_dir, "build", md_name, "build")
    os.makedirs(inside, exist_ok=True)
    baton = os.path.join(jit_dir, "build", "lock_" + md_name)
    lock = os.path.join(inside, "lock")
    for path in (baton, lock):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    with open(os.path.join(os.environ["STANDIN_LOG"], md_name), "a") as log:
        log.write(f"{os.getpid()} {os.environ['MAX_JOBS']}\\n")
    print(f"compiling {md_name} for {os.environ['GPU_ARCHS']}, {blob_gen_cmd}", flush=True)
    if os.environ.get("STANDIN_FAILS") == md_name:
        raise SystemExit(f"error: no kernel in {md_name}")
    with open(os.path.join(_here, "module.bytes"), "rb") as file:
        content = file.read() + md_name.encode()
    content = content.replace(b"gfx942", os.environ["GPU_ARCHS"].encode()[:6])
    linked = os.path.join(inside, md_name + ".so")
    pause = float(os.environ.get("STANDIN_SECONDS", "0")) / 8
    with open(linked, "wb", buffering=0) as out:
        for n in range(0, len(content), len(content) // 8 + 1):
            out.write(content[n : n + len(content) // 8 + 1])
            time.sleep(pause)
    os.remove(lock)
    shutil.copy(linked, jit_dir)
    os.remove(baton)
"""

OPERATORS = """
import torch
from torch import Tensor
from nowhere import Optional

def _mask(max_seqlen_q, is_causal):
    return "_mask" if is_causal and max_seqlen_q > 1 else "_nmask"

def cmdGenFunc_mha_batch_prefill(
    q: Tensor, k: Tensor, max_seqlen_q: int, dropout_p: float, is_causal: bool,
    out: Optional[Tensor] = None,
):
    name = "mha_batch_prefill_bf16_nlogits_nbias" + _mask(max_seqlen_q, is_causal)
    return {"md_name": name, "blob_gen_cmd": [f"{CK_DIR}/generate.py {name}"]}
"""


def shared_object(text=b"", arch=b"gfx942"):
    """Return the bytes of a minimal whole ELF shared object, section table last."""
    body = b"hip-amdgcn-amd-amdhsa--" + arch + b"\0" + text.ljust(4096, b".")
    sections_at = 64 + 56 + len(body)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 224, 1, 0, 64, sections_at, 0, 64, 56, 1, 64, 1, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, sections_at, sections_at, 4096)
    return header + segment + body + b"\0" * 64


def make(folder: Path, *, core=CORE, operators=OPERATORS, modules=None) -> Path:
    """Write a stand-in AITER below a folder; return its package."""
    package = folder / "aiter"
    (package / "jit").mkdir(parents=True)
    (package / "ops").mkdir()
    (folder / "csrc").mkdir()
    (folder / "csrc/kernel.cu").write_text("// a kernel\n")
    (package / "__init__.py").write_text("raise RuntimeError('ROCm version file not found')\n")
    (package / "_version.py").write_text("__version__ = version = '0.1.8.dev3+gd9e5ef7ce'\n")
    (package / "jit/__init__.py").touch()
    (package / "jit/core.py").write_text(core)
    (package / "jit/module.bytes").write_bytes(shared_object())
    (package / "ops/mha.py").write_text(operators)
    names = modules or [row.modules[0] for row in needed.rows()]
    (package / "jit/optCompilerConfig.json").write_text(
        json.dumps({name: {"srcs": [f"{name}.cu"]} for name in names})
    )
    return package


def installed(folder: Path, **changes):
    """Make one and return it as this package sees it."""
    return aiter_install.at(make(folder, **changes))
