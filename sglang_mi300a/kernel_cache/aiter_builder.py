"""Build one AITER module with AITER's own builder, in a process of its own.

    python -m sglang_mi300a.kernel_cache.aiter_builder '{"package": ".../aiter", "module": ...}'

Started with ``AITER_JIT_DIR``, ``GPU_ARCHS``, ``CU_NUM`` and ``MAX_JOBS`` set. AITER's ``jit``
package is imported beside the ``aiter`` package, as AITER's own ``setup.py`` does, because
importing ``aiter`` loads modules and asks for a GPU. A variant's name and generator come from
AITER's own function for it, taken out of ``ops/mha.py`` by its syntax tree for the same reason; it
sees tensors of the dtype served. The last act is a file ``built.json`` with the module's name.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import inspect
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_mi300a import settings
from sglang_mi300a.errors import EXIT_OK, UserError

RESULT = "built.json"
_PR_SET_PDEATHSIG = 1
_OPERATORS = "ops/mha.py"
# One request of two tokens on the rank of TP 4: 8 query heads of 256, one KV head, pages of 16.
_SHAPES = {"q": (2, 8, 256), "k": (1, 16, 1, 256), "v": (1, 16, 1, 256)}
_PLAIN = {
    "max_seqlen_k": 2, "dropout_p": 0.0, "softmax_scale": 0.0625, "logits_soft_cap": 0.0,
    "zero_tensors": False, "window_size_left": -1, "window_size_right": -1, "sink_size": 0,
    "return_softmax_lse": False, "return_dropout_randval": False,
}  # fmt: skip


def build(package: Path, module: str, recipe: str, arguments: Mapping[str, Any]) -> str:
    """Build a module into ``AITER_JIT_DIR``; return the name AITER gave it.

    Args:
        package: AITER's Python package.
        module: Its name in AITER's table.
        recipe: AITER's function that makes a variant of it, or "".
        arguments: That function's arguments, where not plain.

    Raises:
        UserError: This AITER lacks a function, or one asks for what is not known here.
    """
    # Its builder also asks where `aiter` is, without importing it.
    sys.path[:0] = [str(package), str(package.parent)]
    core = importlib.import_module("jit.core")
    for name in ("get_args_of_build", "build_module"):
        if not callable(getattr(core, name, None)):
            raise _unfit(package / "jit/core.py", f"no function {name}")
    chosen = dict(core.get_args_of_build(module))
    chosen["md_name"] = module
    if recipe:
        chosen.update(_variant(package / _OPERATORS, recipe, core, arguments))
    parameters = inspect.signature(core.build_module).parameters
    missing = [
        name
        for name, one in parameters.items()
        if one.default is inspect.Parameter.empty and name not in chosen
    ]
    if missing:
        raise _unfit(package / "jit/core.py", f"build_module asks for {', '.join(missing)}")
    core.build_module(**{name: chosen[name] for name in parameters if name in chosen})
    return str(chosen["md_name"])


def _variant(path: Path, recipe: str, core: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if recipe not in functions:
        raise _unfit(path, f"no function {recipe}")
    function = _function(recipe, functions, core, path)
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in arguments or name in _PLAIN:
            given[name] = arguments.get(name, _PLAIN.get(name))
        elif parameter.default is inspect.Parameter.empty:
            if "Tensor" not in str(parameter.annotation):
                raise _unfit(path, f"{recipe} asks for {name}: {parameter.annotation}")
            given[name] = _tensor(name)
    found = function(**given)
    if not isinstance(found, dict) or not isinstance(found.get("md_name"), str):
        gives = ", ".join(sorted(found)) if isinstance(found, dict) else type(found).__name__
        raise _unfit(path, f"{recipe} gives {gives}, no md_name")
    return found


def _function(name: str, functions: Mapping[str, Any], core: Any, path: Path) -> Any:
    """Return one of a source file's functions with just the globals that it names."""
    as_text = ast.parse("from __future__ import annotations").body  # their types are absent here
    code = compile(ast.Module([*as_text, functions[name]], type_ignores=[]), str(path), "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    made = names[name]
    for one in made.__code__.co_names:
        if hasattr(core, one):
            names[one] = getattr(core, one)
        elif one in functions and one != name:
            names[one] = _function(one, functions, core, path)
        elif one in ("torch", "dtypes"):
            names[one] = _torch() if one == "torch" else _dtypes()
        elif not hasattr(builtins, one) and _is_global(functions[name], one):
            raise _unfit(path, f"{name} uses {one}, which is not known here")
    return made


def _is_global(function: ast.AST, name: str) -> bool:
    """Return whether a name is looked up by itself, not as an attribute of something."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))


def _torch() -> Any:
    return importlib.import_module("torch")


def _dtypes() -> SimpleNamespace:
    torch = _torch()
    return SimpleNamespace(
        fp16=torch.float16, bf16=torch.bfloat16, fp32=torch.float32, fp8=torch.float8_e4m3fnuz
    )


def _tensor(name: str) -> Any:
    torch = _torch()
    if name in _SHAPES:
        return torch.zeros(_SHAPES[name], dtype=torch.bfloat16)
    return torch.zeros(2, dtype=torch.int32)  # index arrays


def _unfit(path: Path, found: str) -> UserError:
    return UserError(
        str(path),
        found=found,
        allowed="AITER's builder as in 0.1.7 or in the ROCm image of SGLang 0.5.18",
        do="use that image's AITER, or let the server build modules in its warm-up",
    )


def main() -> int:
    """Build what the first argument says."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed parent's work is over
    asked = json.loads(sys.argv[1])
    try:
        name = build(Path(asked["package"]), asked["module"], asked["recipe"], asked["arguments"])
    except UserError as error:
        print(error, flush=True)
        return error.exit_code
    (Path(settings.get("AITER_JIT_DIR") or ".") / RESULT).write_text(json.dumps({"name": name}))
    return EXIT_OK


if __name__ == "__main__":
    raise SystemExit(main())
