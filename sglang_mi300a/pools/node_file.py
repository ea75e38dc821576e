"""Nodes described in JSON: those that ship with the package, and those that users record.

    {
     "schema": 1,
     "name": "what it is called",
     "source": "where the numbers come from",
     "numa_nodes": [
      {"node": 0, "total_bytes": 128200000000, "free_bytes": 128200000000, "reclaimable_bytes": 0}
     ],
     "apus": [{"index": 0, "name": "AMD Instinct MI300A", "numa_node": 0}],
     "ttm": {"module": "amdttm", "pages_limit": 134217728},
     "cgroup": null,
     "host_processes_bytes": 8000000000,
     "reserve_bytes": 16106127360
    }

``ttm`` and ``cgroup`` (``{"path", "limit_bytes", "used_bytes"}``) may be null: no limit. The last
two may be missing: then the package's own figures are used.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import estimates, unified_memory
from sglang_mi300a.pools.cgroup_memory import CgroupRoom
from sglang_mi300a.pools.estimates import Amount
from sglang_mi300a.pools.unified_memory import ApuMemory, NodeMemory

SCHEMA = 1
_SHIPPED = Path(__file__).with_name("nodes")
_MOST_BYTES = 1 << 50
_KEYS = ("schema", "name", "source", "numa_nodes", "apus", "ttm", "cgroup")
_OPTIONAL = ("host_processes_bytes", "reserve_bytes")


@dataclass(frozen=True)
class DescribedNode:
    """A node as a file describes it.

    Attributes:
        memory: Its accelerators.
        host: Host processes of an APU.
        reserve: What stays free on an APU.
    """

    memory: NodeMemory
    host: Amount
    reserve: Amount


def shipped() -> list[str]:
    """Return the names of the nodes that ship with the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.json"))


def load(name: str, *, num_ranks: int | None = None) -> DescribedNode:
    """Return a node by file, or by the name of a shipped one.

    Args:
        name: Path, or name.
        num_ranks: Ranks that share a control group's limit; None: one an APU.

    Raises:
        UserError: No such file, another schema, or numbers that cannot be.
    """
    path = _SHIPPED / f"{name}.json" if name in shipped() else Path(name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"--node {name}",
            found=f"not readable ({error.strerror})",
            allowed=f"a file, or one of the shipped nodes: {', '.join(shipped())}",
            do="correct the name",
        ) from error
    except ValueError as error:
        _refuse(name, f"no JSON ({error})", "a node description")
    return parse(data, name, num_ranks=num_ranks)


def parse(data: Any, where: str, *, num_ranks: int | None = None) -> DescribedNode:
    """Return the node that parsed JSON describes; see :func:`load`."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        _refuse(where, f"schema {schema!r}", f"schema {SCHEMA}, which this version reads")
    missing = [key for key in _KEYS if key not in data]
    unknown = sorted(set(data) - {*_KEYS, *_OPTIONAL})
    if missing or unknown:
        found = [f"no {key}" for key in missing] + [f"unknown {key}" for key in unknown]
        _refuse(where, ", ".join(found), f"{', '.join(_KEYS)}; optional {', '.join(_OPTIONAL)}")
    numa_nodes = {}
    for number, row in enumerate(_rows(data, "numa_nodes", where)):
        at = f"{where}: numa_nodes[{number}]"
        sizes = {
            key: _bytes(row, key, at) for key in ("total_bytes", "free_bytes", "reclaimable_bytes")
        }
        if sizes["free_bytes"] + sizes["reclaimable_bytes"] > sizes["total_bytes"]:
            _refuse(at, "more free and reclaimable than there is", "at most total_bytes")
        numa_nodes[_whole(row, "node", at)] = sizes
    rows = _rows(data, "apus", where)
    apus = []
    for number, row in enumerate(rows):
        at = f"{where}: apus[{number}]"
        node = _whole(row, "numa_node", at)
        if node not in numa_nodes:
            _refuse(
                at,
                f"numa_node {node}",
                f"one of numa_nodes: {', '.join(map(str, sorted(numa_nodes)))}",
            )
        if _whole(row, "index", at) != number:
            _refuse(at, f"index {row['index']}", f"{number}, its place in the list")
        sharers = sum(1 for other in rows if other.get("numa_node") == node)
        sizes = numa_nodes[node]
        apus.append(
            ApuMemory(
                index=number,
                name=str(row.get("name", "")),
                numa_node=node,
                shared=True,
                total_bytes=sizes["total_bytes"] // sharers,
                free_bytes=sizes["free_bytes"] // sharers,
                reclaimable_bytes=sizes["reclaimable_bytes"] // sharers,
            )
        )
    ttm, cgroup = _ttm(data["ttm"], where), _cgroup(data["cgroup"], where)
    limits = []
    if ttm is not None:
        limits.append(unified_memory.ttm_limit(*ttm, len(apus)))
    if cgroup is not None:
        limits.append(unified_memory.cgroup_limit(cgroup, num_ranks or len(apus)))
    memory = NodeMemory(
        str(data["name"]),
        tuple(replace(apu, limits=tuple(limits)) for apu in apus),
        ttm=ttm,
        cgroup=cgroup,
    )
    return DescribedNode(
        memory,
        _amount(data, "host_processes_bytes", estimates.HOST_PROCESSES, where),
        _amount(data, "reserve_bytes", estimates.RESERVE, where),
    )


def describe(memory: NodeMemory, *, name: str, source: str) -> dict[str, Any]:
    """Return the description of a node that was read, for :func:`json.dump`.

    A job's cpuset and what HIP said are not kept.
    """
    sizes = ("total_bytes", "free_bytes", "reclaimable_bytes")
    return {
        "schema": SCHEMA,
        "name": name,
        "source": source,
        "numa_nodes": [
            {
                "node": node,
                **{
                    key: sum(getattr(apu, key) for apu in memory.apus if apu.numa_node == node)
                    for key in sizes
                },
            }
            for node in sorted({apu.numa_node for apu in memory.apus})
        ],
        "apus": [
            {"index": apu.index, "name": apu.name, "numa_node": apu.numa_node}
            for apu in memory.apus
        ],
        "ttm": memory.ttm and {"module": memory.ttm[0], "pages_limit": memory.ttm[1]},
        "cgroup": memory.cgroup and asdict(memory.cgroup),
    }


def _ttm(row: Any, where: str) -> tuple[str, int] | None:
    if row is None:
        return None
    at = f"{where}: ttm"
    if not isinstance(row, dict) or row.get("module") not in unified_memory.TTM_MODULES:
        _refuse(at, repr(row), f"module {' or '.join(unified_memory.TTM_MODULES)}, and pages_limit")
    return row["module"], _whole(row, "pages_limit", at)


def _cgroup(row: Any, where: str) -> CgroupRoom | None:
    if row is None:
        return None
    at = f"{where}: cgroup"
    if not isinstance(row, dict) or not isinstance(row.get("path"), str):
        _refuse(at, repr(row), "path, limit_bytes and used_bytes, or null")
    return CgroupRoom(row["path"], _bytes(row, "limit_bytes", at), _bytes(row, "used_bytes", at))


def _amount(data: dict[str, Any], key: str, usual: Amount, where: str) -> Amount:
    if key not in data:
        return usual
    planned = _bytes(data, key, where)
    return replace(
        usual, planned=planned, low=min(usual.low, planned), high=max(usual.high, planned)
    )


def _rows(data: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    rows = data[key]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        _refuse(where, f"{key} {rows!r}", "a list of objects, not empty")
    return rows


def _whole(row: dict[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if type(value) is not int or value < 0:
        _refuse(where, f"{key} {value!r}", "a whole number, not negative")
    return value


def _bytes(row: dict[str, Any], key: str, where: str) -> int:
    value = _whole(row, key, where)
    if value > _MOST_BYTES:
        _refuse(where, f"{key} {value}", f"bytes, at most {_MOST_BYTES}")
    return value


def _refuse(where: str, found: str, allowed: str) -> NoReturn:
    raise UserError(
        f"node {where}", found=found, allowed=allowed, do="correct the file, or record it again"
    )
