"""Nothing that can run code is ever read: no pickle, in any of its disguises."""

import ast

from tests import repository

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load"), ("np", "save")}
CODE = {"eval", "exec", "compile"}


def uses(text):
    """Yield what in a module's text could unpickle or run data."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in CALLS:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in CODE:
                yield node.func.id


def test_the_weights_room_never_unpickles():
    paths = [
        *sorted((repository.PACKAGE / "weights").glob("*.py")),
        repository.PACKAGE / "artifact_manifest.py",
        repository.PACKAGE / "cli" / "artifact.py",
        repository.PACKAGE / "cli" / "shard_weights.py",
    ]
    assert len(paths) > 20
    found = {path.name: list(uses(path.read_text())) for path in paths}
    assert {name: what for name, what in found.items() if what} == {}


def test_the_search_finds_what_it_looks_for():
    text = "import pickle\nfrom dill import loads\nimport torch\ntorch.load(x)\nnp.load(y)\nexec(z)"
    assert list(uses(text)) == ["pickle", "dill", "exec", "torch.load", "np.load"]
