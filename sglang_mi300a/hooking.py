"""Seams in SGLang as data: declared per room, judged by source, counted when called.

A room lists its seams in ``hooks.py``. Three kinds exist:

* :class:`Hook`: a callable put before, after, around or in place of one of SGLang's, through
  SGLang's own ``HookRegistry``.
* :class:`Registration`: an entry written into one of SGLang's public registries.
* :class:`Reliance`: code of SGLang's that ours subclasses or calls, and so depends on.

SGLang logs a plugin's or a hook's failure and serves on. Therefore a required seam that does not
fit raises :class:`HookError` here (``plugin`` turns it into ``SystemExit``), and ``gates`` checks
later that each required seam is live and was really reached by a call. ``apply_hooks()`` is never
called from here: it would starve hooks of other plugins on the same target.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sglang_mi300a import hook_fit
from sglang_mi300a.errors import UserError

Kind = Literal["before", "after", "around", "replace"]
Role = Literal["launcher", "rank"]
Stage = Literal["start", "load", "pools", "prefill", "decode", "verify", "draft"]
"""By when a seam must have been reached: process start, weight load, pool allocation, the first
prefill, decode or MTP verify forward of the target, the first forward of the draft."""
Device = Literal["any", "cpu", "gfx942"]


class HookError(UserError):
    """A required seam does not fit, did not take, or was never reached."""


@dataclass(frozen=True, kw_only=True)
class Seam:
    """What every seam says of itself.

    Attributes:
        name: ``room.what``, unique.
        target: Dotted path of the function, method, class or module attribute in SGLang.
        why: What breaks or is missing without it, and why no cheaper seam does.
        remove_when: The change in SGLang that makes it unnecessary.
        required: Whether output would be wrong, or the server unusable, without it.
        roles: The processes it is installed in.
        device: The device it is meant for.
        reached_by: The stage at which it must have been reached at least once.
        only_with_draft: Whether it matters only when a draft model is served.
    """

    name: str
    target: str
    why: str
    remove_when: str
    required: bool = True
    roles: tuple[Role, ...] = ("rank",)
    device: Device = "any"
    reached_by: Stage = "load"
    only_with_draft: bool = False


@dataclass(frozen=True, kw_only=True)
class Hook(Seam):
    """A callable on one of SGLang's functions.

    Attributes:
        kind: Where it runs, as in SGLang's ``HookType``.
        call: The body. ``before(*args)``, ``after(result, *args)``, ``around(original, *args)``,
            ``replace(*args)``. A dotted path ``module:function`` is imported when installed, so
            that a launcher need not import what only ranks run.
        needs: Parameter names of the target that the body relies on.
        callers: Further dotted paths through which SGLang reaches the target (a ``from`` import
            elsewhere, say); each must lead to our wrapper too.
    """

    kind: Kind
    call: Callable[..., Any] | str
    needs: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Registration(Seam):
    """An entry in a registry of SGLang's: ``target[key] = value``.

    Attributes:
        key: The registry key.
        declared_in: Dotted path of the literal that names the key, if it is not the target itself.
        written_by: Dotted path of SGLang's function that writes new entries, called with key and
            value; "" where the key is one of SGLang's own and is written over.
        by_decorator: Whether ``written_by`` is called with the key and gives what takes the value.
        value: Dotted path ``module:attribute`` of what is registered, imported when installed.
    """

    key: str
    value: str
    declared_in: str = ""
    written_by: str = ""
    by_decorator: bool = False


@dataclass(frozen=True, kw_only=True)
class Reliance(Seam):
    """Code of SGLang's that ours subclasses or calls; judged for fit, never installed."""


AnySeam = Hook | Registration | Reliance


class Registry(Protocol):
    """The part of SGLang's ``HookRegistry`` used here."""

    def register(self, target: str, hook: Callable[..., Any], hook_type: Any) -> None: ...


@dataclass
class Installed:
    """One seam of this process and how often it was reached.

    Attributes:
        seam: The declaration.
        counted: The wrapper handed to SGLang (hooks only); found again to prove liveness.
        calls: How often the seam was reached.
        skipped: Why an optional seam was not installed, or "".
    """

    seam: AnySeam
    counted: Callable[..., Any] | None = None
    calls: int = 0
    skipped: str = ""


_installed: dict[str, Installed] = {}


def installed() -> dict[str, Installed]:
    """Return this process's seams by name."""
    return dict(_installed)


def forget() -> None:
    """Forget every installed seam (for tests; SGLang keeps what was applied)."""
    _installed.clear()


def reached(name: str) -> None:
    """Count one call through seam ``name``; unknown names are ignored (seam not installed)."""
    entry = _installed.get(name)
    if entry is not None:
        entry.calls += 1


def skipped(prefix: str) -> dict[str, str]:
    """Return the optional seams of this process that do not fit, with why, by name.

    Args:
        prefix: What their names begin with.
    """
    return {
        name: entry.skipped
        for name, entry in _installed.items()
        if name.startswith(prefix) and entry.skipped
    }


def install(
    seams: Iterable[AnySeam],
    *,
    role: Role,
    device: str,
    with_draft: bool,
    tree: hook_fit.SourceTree,
    pins: hook_fit.Pins,
    registry: Registry,
    kinds: Any,
    say: Callable[[str], None],
) -> None:
    """Install the seams meant for this role and device.

    Args:
        seams: Declarations of all rooms.
        role: This process's role.
        device: ``"cpu"`` or ``"gfx942"``.
        with_draft: Whether a draft model is served.
        tree: Source of the SGLang at hand.
        pins: Recorded signatures and fingerprints of the supported SGLang.
        registry: SGLang's ``HookRegistry``.
        kinds: SGLang's ``HookType``.
        say: Where a skipped optional seam is reported, once.

    Raises:
        HookError: A required seam does not fit.
    """
    for seam in seams:
        if not applies(seam, role=role, device=device, with_draft=with_draft):
            continue
        fit = judge(seam, tree, pins)
        if not fit.fits:
            if seam.required:
                raise unfit(seam, fit, pins)
            say(f"skipped: hook {seam.name}: {seam.target} {fit.status}: {fit.detail}")
            _installed[seam.name] = Installed(seam, skipped=f"{fit.status}: {fit.detail}")
            continue
        register([seam], registry, kinds)


def unfit(seam: AnySeam, fit: hook_fit.Fit, pins: hook_fit.Pins) -> HookError:
    """Return the refusal for a required seam that does not fit."""
    return HookError(
        f"hook {seam.name}",
        found=f"{seam.target} {fit.status}: {fit.detail}",
        allowed=f"{seam.target} as in SGLang {', '.join(pins.versions)}",
        do="install a supported SGLang (`sglang-mi300a hooks check` shows each difference) or "
        f"serve without this package (--mi300a off). Without this hook: {seam.why}",
    )


def register(seams: Iterable[AnySeam], registry: Registry, kinds: Any) -> None:
    """Put seams into SGLang without judging them; see :func:`install`."""
    for seam in seams:
        entry = Installed(seam)
        _installed[seam.name] = entry
        if isinstance(seam, Hook):
            body = resolve(seam.call) if isinstance(seam.call, str) else seam.call
            entry.counted = _counted(seam.name, body)
            registry.register(seam.target, entry.counted, kinds(seam.kind))
        elif isinstance(seam, Registration):
            enter_into_registry(seam)


def enter_into_registry(seam: Registration) -> None:
    """Write a registration's value into SGLang's registry; imports both."""
    value = resolve(seam.value)
    if seam.by_decorator:
        pkgutil.resolve_name(seam.written_by)(seam.key)(value)
    elif seam.written_by:
        pkgutil.resolve_name(seam.written_by)(seam.key, value)
    else:
        pkgutil.resolve_name(seam.target)[seam.key] = value


def applies(seam: AnySeam, *, role: Role, device: str, with_draft: bool) -> bool:
    """Return whether a seam is meant for this process."""
    return (
        role in seam.roles
        and seam.device in ("any", device)
        and (with_draft or not seam.only_with_draft)
    )


def judge(seam: AnySeam, tree: hook_fit.SourceTree, pins: hook_fit.Pins) -> hook_fit.Fit:
    """Return whether a seam's target in ``tree`` is the one that was pinned."""
    needs = seam.needs if isinstance(seam, Hook) else ()
    fit = hook_fit.judge(seam.target, tree, pins, needs=needs)
    if fit.fits and isinstance(seam, Registration) and not seam.written_by:
        return hook_fit.judge_key(seam.declared_in or seam.target, seam.key, tree)
    return fit


def resolve(path: str) -> Any:
    """Return the object behind ``module:attribute``."""
    return pkgutil.resolve_name(path)


def _counted(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(body, type):
        return body

    @functools.wraps(body)
    def counted(*args: Any, **kwargs: Any) -> Any:
        reached(name)
        return body(*args, **kwargs)

    return counted


def is_live(entry: Installed) -> tuple[bool, str]:
    """Return whether SGLang's own lookups lead to our wrapper, and where they do not.

    A hook is live when the attribute at its target, and at each of its ``callers``, is a chain of
    wrappers that contains ours. A registration is live when the registry holds our value.
    """
    seam = entry.seam
    if isinstance(seam, Reliance):
        return True, ""
    if isinstance(seam, Registration):
        found = pkgutil.resolve_name(seam.target).get(seam.key)
        if found is resolve(seam.value):
            return True, ""
        return False, f"{seam.target}[{seam.key!r}] is {found!r}"
    for path in (seam.target, *seam.callers):
        try:
            attribute = pkgutil.resolve_name(path)
        except (ImportError, AttributeError) as error:
            return False, f"{path} cannot be reached ({error})"
        if not _chain_holds(attribute, entry.counted):
            return False, f"{path} is not our wrapper but {_describe(attribute)}"
    return True, ""


def _chain_holds(attribute: Any, counted: Callable[..., Any] | None) -> bool:
    link: Any = getattr(attribute, "__func__", attribute)
    while link is not None:
        cells = getattr(link, "__closure__", None) or ()
        if link is counted or any(_cell(cell) is counted for cell in cells):
            return True
        link = getattr(link, "__wrapped__", None)
    return False


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _describe(attribute: Any) -> str:
    module = getattr(attribute, "__module__", "?")
    return f"{module}.{getattr(attribute, '__qualname__', repr(attribute))}"


def other_plugins(entry: Installed, hooks_by_target: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return descriptions of hooks that other plugins put on the same target.

    Args:
        entry: One of ours.
        hooks_by_target: ``HookRegistry._hooks``: target to ``(type, callable, source)`` rows.
    """
    rows = hooks_by_target.get(entry.seam.target, ())
    return [
        f"{kind.value} by {getattr(source, 'plugin_name', 'an unnamed plugin')}"
        for kind, call, source in rows
        if call is not entry.counted
    ]
