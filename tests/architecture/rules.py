"""The house rules that a machine can judge, each a walk over a module's syntax tree or a text."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

OVERALL = {"cli", "demo", "doctor"}
"""Packages that may read all rooms."""

FOUNDATION_PACKAGES = {"launcher"}
"""Foundation that is a package rather than a module."""

PACKAGE = "sglang_mi300a"


@dataclass(frozen=True)
class Offence:
    """A place and what is wrong there."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Import:
    """One imported dotted name.

    Attributes:
        name: Absolute, to the last part: ``a.b.c`` for ``from a.b import c``.
        line: Where.
        at_import: Whether it runs when the module is imported.
        for_types: Whether it stands under ``if TYPE_CHECKING``, and so never runs.
    """

    name: str
    line: int
    at_import: bool
    for_types: bool


class Module:
    """A parsed module of the package.

    Attributes:
        file: Path relative to the package, with slashes.
        tree: Its syntax tree.
        rooms: Names of all rooms.
    """

    def __init__(self, file: str, text: str, rooms: set[str]) -> None:
        self.file = file
        self.tree = ast.parse(text)
        self.rooms = rooms

    @property
    def top(self) -> str:
        """The folder under the package, or "" for a foundation module."""
        first, *rest = PurePosixPath(self.file).parts
        return first if rest else ""

    @property
    def is_standin(self) -> bool:
        """Whether it stands in for a module of another project, and follows that one's shape."""
        return self.file.startswith("cpu_engine/standins/")

    @property
    def is_hooks(self) -> bool:
        """Whether it is a room's list of hooks."""
        return self.top in self.rooms and PurePosixPath(self.file).name == "hooks.py"

    @property
    def is_stock(self) -> bool:
        """Whether it holds a room's subclasses of SGLang's classes."""
        return self.top in self.rooms and PurePosixPath(self.file).name == "stock.py"

    def imports(self) -> Iterator[Import]:
        """Yield every import statement's names, and literal names given to an import function."""
        yield from self._imports(self.tree.body, at_import=True, for_types=False)

    def _imports(self, nodes: list[ast.AST], at_import: bool, for_types: bool) -> Iterator[Import]:
        for node in nodes:
            for name in self._names(node):
                yield Import(name, node.lineno, at_import, for_types)
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            children = list(ast.iter_child_nodes(node))
            if types:
                yield from self._imports(node.body, at_import, True)
                children = node.orelse
            yield from self._imports(children, at_import and not inside, for_types)

    def _names(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            package = [PACKAGE, *PurePosixPath(self.file).parts[:-1]]
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            return [f"{start}.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Call) and node.args:
            called = _last_name(node.func)
            first = node.args[0]
            by_name = called in {"import_module", "__import__", "resolve_name"}
            if by_name and isinstance(first, ast.Constant) and isinstance(first.value, str):
                return [first.value.replace(":", ".")]
        return []

    def offence(self, line: int, what: str) -> Offence:
        """Return an offence in this file."""
        return Offence(f"{PACKAGE}/{self.file}", line, what)


def rooms_read_the_foundation_only(module: Module) -> Iterator[Offence]:
    """Yield imports of a room by another room or by the foundation.

    Two joins are made while running, not while importing: ``plugin`` collects the rooms' hooks, and
    a room's hook may have its body where rooms are joined, in ``cli``.
    """
    if module.top in OVERALL:
        return
    late = OVERALL if module.is_hooks else module.rooms if module.file == "plugin.py" else set()
    for one in module.imports():
        parts = one.name.split(".")
        if parts[0] != PACKAGE or len(parts) < 2 or parts[1] not in module.rooms | OVERALL:
            continue
        if parts[1] == module.top or (parts[1] in late and not one.at_import):
            continue
        who = f"room {module.top}" if module.top else "the foundation"
        yield module.offence(one.line, f"{who} imports {one.name}")
    if module.top:
        others = "|".join(sorted((module.rooms | OVERALL) - {module.top} - late))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.match(rf"{PACKAGE}\.({others})\b[.:]\w", node.value):
                    what = f"room {module.top} names {node.value!r}, code of another room"
                    yield module.offence(node.lineno, what)


def sglang_is_reached_through_its_seams(module: Module) -> Iterator[Offence]:
    """Yield imports of SGLang outside plugin.py, stock.py and the bodies in hooks.py."""
    if module.file == "plugin.py" or module.is_stock or module.is_standin:
        return
    for one in module.imports():
        if one.name.split(".")[0] != "sglang" or one.for_types:
            continue
        if module.is_hooks and not one.at_import:
            continue
        yield module.offence(one.line, f"imports {one.name}: move it into a hook body or stock.py")


def stock_subclasses_are_imported_late(module: Module) -> Iterator[Offence]:
    """Yield imports of a room's ``stock`` that run when the importing module is imported."""
    for one in module.imports():
        parts = one.name.split(".")
        if parts[0] == PACKAGE and "stock" in parts[2:] and one.at_import and not one.for_types:
            yield module.offence(one.line, f"imports {one.name} at import: that imports SGLang")


def pure_modules_do_without_torch(module: Module) -> Iterator[Offence]:
    """Yield imports of torch that run when a foundation module or a hooks.py is imported."""
    if module.top and not module.is_hooks:
        return
    for one in module.imports():
        if one.name.split(".")[0] == "torch" and one.at_import and not one.for_types:
            yield module.offence(one.line, f"imports {one.name} at import, but is a pure module")


def only_settings_reads_the_environment(module: Module) -> Iterator[Offence]:
    """Yield uses of the process environment outside settings.py."""
    if module.file == "settings.py" or module.is_standin:
        return
    doors = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    aliases = {"os"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname for a in node.names if a.name == "os" and a.asname}
    for node in ast.walk(module.tree):
        by_attribute = (
            isinstance(node, ast.Attribute)
            and node.attr in doors
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        )
        by_import = (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and doors & {a.name for a in node.names}
        )
        if by_attribute or by_import:
            yield module.offence(node.lineno, "touches the environment: that is settings.py's")


def no_exception_is_caught_blindly(module: Module) -> Iterator[Offence]:
    """Yield handlers of everything; ``except Exception`` is doctor's, a bare ``except`` nobody's.

    A handler that ends in ``raise`` alone tidies up and catches nothing.
    """
    broad = {"Exception", "BaseException"}
    allowed = {"Exception"} if module.top == "doctor" else set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield module.offence(node.lineno, "bare except")
                continue
            last = node.body[-1]
            if isinstance(last, ast.Raise) and last.exc is None:
                continue
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            for name in {_last_name(one) for one in caught} & broad - allowed:
                yield module.offence(node.lineno, f"except {name}")
        elif isinstance(node, ast.Call) and _last_name(node.func) == "suppress":
            for name in {_last_name(one) for one in node.args} & broad - allowed:
                yield module.offence(node.lineno, f"suppress({name})")


def names_say_what_a_thing_decides(module: Module) -> Iterator[Offence]:
    """Yield files, folders and classes named after no content."""
    empty = {"common", "helper", "helpers", "manager", "misc", "util", "utils", "v2"}
    if module.is_standin:
        return
    for part in PurePosixPath(module.file).with_suffix("").parts:
        for word in empty & set(_words(part)):
            yield module.offence(1, f"file or folder {part!r} is named {word!r}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            for word in empty & set(_words(node.name)):
                yield module.offence(node.lineno, f"class {node.name} is named {word!r}")


def hooks_are_applied_by_sglang(module: Module) -> Iterator[Offence]:
    """Yield calls of ``apply_hooks()``: they starve other plugins' hooks on the same target."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _last_name(node.func) == "apply_hooks":
            yield module.offence(node.lineno, "calls apply_hooks()")


def public_things_are_documented(module: Module) -> Iterator[Offence]:
    """Yield modules, and public functions and classes of a module, without a docstring."""
    if module.is_standin:
        return
    if not ast.get_docstring(module.tree) and module.tree.body:
        yield module.offence(1, "module has no docstring")
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not node.name.startswith("_") and not ast.get_docstring(node):
                yield module.offence(node.lineno, f"{node.name} has no docstring")


PACKAGE_RULES = (
    rooms_read_the_foundation_only,
    sglang_is_reached_through_its_seams,
    stock_subclasses_are_imported_late,
    pure_modules_do_without_torch,
    only_settings_reads_the_environment,
    no_exception_is_caught_blindly,
    names_say_what_a_thing_decides,
    hooks_are_applied_by_sglang,
    public_things_are_documented,
)


def tests_that_assert_nothing(file: str, text: str) -> Iterator[Offence]:
    """Yield test functions that can only fail by accident.

    A test asserts by an ``assert``, a ``pytest.raises``, ``warns`` or ``fail``, a function named
    ``assert_...``, or a function of the same file that does one of these.
    """
    tree = ast.parse(text)
    functions = {
        node.name: node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    asserting = {name for name, node in functions.items() if _asserts(node, set())}
    for name, node in functions.items():
        if name.startswith("test") and not _asserts(node, asserting):
            yield Offence(file, node.lineno, f"{name} asserts nothing")


def _asserts(function: ast.AST, asserting: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name in {"raises", "warns", "fail"} | asserting or name.startswith("assert_"):
                return True
    return False


# Written with [x] so that this file does not match itself.
UNFIT_FOR_THE_PUBLIC = {
    "a path of one machine": r"/[w]ork/|/[r]oot/|/[f]arm\b|/[o]pt/(pypi|wheels)|/[t]mp/dev\b"
    r"|\.[p]yenv/versions/\d|/[h]ome/\w+/",
    "a package registry's host": r"[p]ypi\.org|[p]ythonhosted\.org|[n]pmjs\.(org|com)"
    r"|[d]eb\.debian\.org|[a]naconda\.org|[c]rates\.io",
    "an issue's number": r"(?i)\b[i]ssue\s*#?\d|\bGH-\d",
    "unfinished work": r"\bT[O]DO\b|\bF[I]XME\b|\bX[X]X\b",
    "a page outside the repository": r"\bfield_[n]otes\b|\b[d]ecisions\.md|\bstyle_[s]tudy\b",
}


def text_unfit_for_the_public(file: str, text: str) -> Iterator[Offence]:
    """Yield lines that speak of this machine, a registry, or unfinished work."""
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in UNFIT_FOR_THE_PUBLIC.items():
            if found := re.search(pattern, line):
                yield Offence(file, number, f"{what}: {found[0]}")


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _words(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
