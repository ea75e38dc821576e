"""The steps of ``prepare``: what each has left to do, read from what it makes, and how it is done.

A step keeps no record of its own. What it makes is looked at each time, so it does not matter
whether this command made it, another one did, or a run was killed half-way.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sglang_mi300a import artifact_manifest, device, golden, served_model, settings
from sglang_mi300a.artifact_manifest import PARTS
from sglang_mi300a.cli import doctor as doctor_command
from sglang_mi300a.cli import gemm_grid, one_file_tables, tables, tune_moe
from sglang_mi300a.cli import main as program
from sglang_mi300a.doctor import findings, gather, judge_devices
from sglang_mi300a.errors import EXIT_OK, JudgedAgainst, UserError
from sglang_mi300a.gemm import staging, tuned_table, tuning_plan
from sglang_mi300a.kernel_cache import aiter_install, jobs, needed
from sglang_mi300a.kernel_cache import key as keys
from sglang_mi300a.kernel_cache.store import Store
from sglang_mi300a.moe.kernels import candidates, prediction
from sglang_mi300a.moe.tile_tuning import SECONDS_A_BATCH
from sglang_mi300a.weights import artifact as artifacts
from sglang_mi300a.weights import checkpoint as checkpoints
from sglang_mi300a.weights.resuming import Progress

SHARD_BYTES_A_SECOND = 1e9
"""Estimate: reading and writing at once, one local NVMe disk or a parallel file system."""
GOLDEN_BYTES_A_SECOND = 2e8
"""Two cores and a virtual disk on two layers of the model's true sizes; a node has more of both."""
SECONDS_A_MODULE = 100.0
"""Source: published first boots of this model, AITER compiling one module after the other."""
BYTES_A_MODULE = 50e6
"""Estimate: an AITER module for one architecture has some tens of megabytes."""
BYTES_A_PRODUCT = 1000
"""A tuned product in the record, the table and the files of four devices."""

Kind = Literal["check", "done", "to do", "cannot", "at fault"]


@dataclass(frozen=True)
class Wanted:
    """What is to be prepared.

    Attributes:
        model: Checkpoint, or an artifact of it.
        out: Artifact; the model itself where that is one.
        preset: By name.
        tp: Ranks.
        node: Described node that memory is planned for; None: this one.
        verify: Whether every byte of the artifact is read.
    """

    model: Path
    out: Path
    preset: str
    tp: int
    node: str | None = None
    verify: bool = False

    @property
    def served(self) -> Path:
        """What will be served: the artifact once it is there."""
        return self.out if artifact_manifest.is_artifact(self.out) else self.model

    @property
    def server_flags(self) -> list[str]:
        """Flags that commands about the server share."""
        return [
            "--model", str(self.served), "--preset", self.preset, "--tp-size", str(self.tp)
        ]  # fmt: skip


@dataclass(frozen=True)
class State:
    """What a step has left to do.

    Attributes:
        kind: ``check`` (is done each time, makes nothing), ``done``, ``to do``, ``cannot`` (be
            done on this machine), ``at fault`` (what it made is damaged).
        said: Why, with values.
        seconds: Estimate of what is left.
        num_bytes: Estimate of what will be written.
        error: What stops the run: what is damaged, or why no server starts without the step.
    """

    kind: Kind
    said: str
    seconds: float = 0.0
    num_bytes: int = 0
    error: UserError | None = None


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: For ``--skip``.
        about: What it is for.
        look: Returns its state; ``UserError`` where what it made is damaged.
        words: Returns the command that does it, without the program's name.
        do: Does it in another way than by that command; raises where it fails.
        places: Returns where it writes.
    """

    name: str
    about: str
    look: Callable[[Wanted], State]
    words: Callable[[Wanted], list[str]]
    do: Callable[[Wanted], None] | None = None
    places: Callable[[Wanted], list[Path]] = lambda wanted: []

    def state(self, wanted: Wanted) -> State:
        """Return its state, also where that is damage."""
        try:
            return self.look(wanted)
        except UserError as error:
            return State("at fault", str(error), error=error)

    def run(self, wanted: Wanted) -> State:
        """Do it; return its state afterwards.

        Raises:
            UserError: Input or machine does not allow it.
            JudgedAgainst: It was done, and the judgement went against.
        """
        if self.do is not None:
            self.do(wanted)
        else:
            run_command(self.words(wanted))
        return self.state(wanted)

    def num_bytes(self, wanted: Wanted) -> int:
        """Return the bytes of what it has made so far."""
        return sum(_tree_bytes(path) for path in self.places(wanted))


def run_command(words: list[str]) -> None:
    """Run a command of this program in this process.

    Raises:
        UserError: It refuses.
        JudgedAgainst: It ends with another exit code than 0.
    """
    args = program.parse(list(words))
    code = int(args.run(args))
    if code != EXIT_OK:
        raise JudgedAgainst(
            f"`sglang-mi300a {shlex.join(words)}` ended with exit code {code}; it says above why"
        )


def _tree_bytes(path: Path) -> int:
    total = 0
    for one in [path, *path.rglob("*")]:
        with contextlib.suppress(OSError):  # it may go meanwhile
            total += one.stat().st_size if one.is_file() else 0
    return total


# -- doctor ----------------------------------------------------------------------------------------


def _look_at_machine(wanted: Wanted) -> State:
    return State("check", "what would go wrong on this machine; changes nothing", seconds=5)


def _doctor(wanted: Wanted) -> None:
    """Judge the machine; only what breaks a server stops, and not that a laptop has no MI300A."""
    question = gather.Question(wanted.model, wanted.tp, (), preset=wanted.preset)
    seen, paths = gather.facts(question)
    found = findings.judge(seen)
    print(doctor_command.in_words(seen, found, (), paths))
    breaking = [one.id for one in found if one.severity == "breaks"]
    if not device.accelerators() and judge_devices.no_gfx942.id in breaking:
        breaking.remove(judge_devices.no_gfx942.id)
        print("without an accelerator `serve` runs SGLang's CPU engine: right, and slow")
    if breaking:
        raise JudgedAgainst(
            f"doctor found what keeps a server from starting: {', '.join(breaking)}; the cure of "
            "each stands above. `--skip doctor` goes on all the same"
        )


# -- shard -----------------------------------------------------------------------------------------


def _look_at_artifact(wanted: Wanted) -> State:
    if not artifact_manifest.is_artifact(wanted.out):
        total = sum(file.size for file in checkpoints.read(wanted.model).files)
        there = sum(one.size for one in Progress(wanted.out).finished().values())
        left = max(0, total - there)
        earlier = f", {there / 1e9:.3f} GB of an earlier run kept" if there else ""
        said = f"{wanted.out}: {total / 1e9:.3f} GB of weights for {wanted.tp} ranks{earlier}"
        return State("to do", said, left / SHARD_BYTES_A_SECOND, left)
    try:
        found = artifacts.read(wanted.out)
        _check_artifact(found, wanted)
    except UserError as error:
        raise UserError(
            error.where,
            found=error.found,
            allowed=error.allowed,
            do=f"delete {wanted.out} and give the same command again, or name another --out; "
            "nothing is deleted by itself",
        ) from error
    how = "every byte" if wanted.verify else "every file's header"
    total = artifacts.num_bytes(found, range(wanted.tp))
    return State("done", f"{wanted.out}: {total / 1e9:.3f} GB, {how} as the manifest says")


def _check_artifact(found: artifacts.Artifact, wanted: Wanted) -> None:
    manifest = found.manifest
    is_made_here = wanted.model != wanted.out
    if manifest.tp != wanted.tp or (is_made_here and manifest.ep != 1):
        raise UserError(
            str(wanted.out),
            found=f"TP {manifest.tp}, EP {manifest.ep}",
            allowed=f"TP {wanted.tp}, EP 1 as asked",
            do="",
        )
    if is_made_here:
        source = checkpoints.read(wanted.model).files
        if [(file.name, file.size, file.xxh3_128) for file in source] != [
            (file.name, file.size, file.xxh3_128) for file in manifest.source_files
        ]:
            raise UserError(
                str(wanted.out),
                found="an artifact of another checkpoint",
                allowed=f"one of {wanted.model}",
                do="",
            )
    for rank in range(manifest.tp):
        for part in PARTS:
            if manifest.of_rank(rank, part):
                artifacts.check_files(found, rank, part)
    if wanted.verify and (problems := artifacts.verify(found).problems):
        raise problems[0]


def _shard_words(wanted: Wanted) -> list[str]:
    return [
        "shard-weights", "--model", str(wanted.model), "--out", str(wanted.out),
        "--tp", str(wanted.tp), "--text-only",
    ]  # fmt: skip


# -- golden logits ---------------------------------------------------------------------------------


def _look_at_golden(wanted: Wanted) -> State:
    values = golden.read(wanted.out)
    if values is not None:
        golden.check_source(values, artifact_manifest.read(wanted.out).source_files, wanted.out)
        return State("done", f"{wanted.out / golden.NAME}: {len(values.rows)} prompts")
    if wanted.model == wanted.out:
        return State("cannot", "the checkpoint is needed, and --model is an artifact of it")
    total = sum(file.size for file in checkpoints.read(wanted.model).files)
    return State("to do", "not computed yet", total / GOLDEN_BYTES_A_SECOND)


def _golden_words(wanted: Wanted) -> list[str]:
    return ["golden", "--model", str(wanted.model), "--out", str(wanted.out)]


# -- kernel cache ----------------------------------------------------------------------------------


def _look_at_kernels(wanted: Wanted) -> State:
    found = device.accelerators()
    if not found:
        return State(
            "cannot", "no accelerator: SGLang's CPU engine has no AITER, so a server starts without"
        )
    try:
        arch, num_cus = keys.target(found, None, None)
        key = keys.of_this_machine(aiter_install.find(), arch, num_cus, needed.names())
    except UserError as error:
        return State("cannot", f"no server starts without AITER here: {error}", error=error)
    store = Store(settings.kernel_cache_dir())
    lacks = [name for name in needed.names() if store.whole(key.digest, name) is None]
    have = len(needed.names()) - len(lacks)
    said = f"{store.root}: {have} of {len(needed.names())} modules of key {key.digest} whole"
    if not lacks:
        return State("done", said)
    at_once, _ = jobs.split(jobs.that_fit(*_cores_and_bytes()), len(lacks))
    seconds = -(-len(lacks) // at_once) * SECONDS_A_MODULE
    return State("to do", said, seconds, int(len(lacks) * BYTES_A_MODULE))


def _cores_and_bytes() -> tuple[int, int]:
    return len(os.sched_getaffinity(0)), jobs.free_bytes()


# -- tables ----------------------------------------------------------------------------------------


def _look_at_products(wanted: Wanted) -> State:
    grid = gemm_grid.of_preset(served_model.read(wanted.served), wanted.preset, wanted.tp)
    num_devices = len(device.accelerators())
    if not num_devices:
        return State(
            "cannot",
            f"no accelerator to time {grid.num_cells} products on; a server starts without: on "
            "MI300A our kernels and stock's choices serve them, slower where stock's are bad",
        )
    applied = staging.current(tables.root())
    lack, said = grid.num_cells, "no table is applied"
    if applied is not None:
        differing, _ = tables.misfits(applied.table)
        lack = len(tuned_table.covered(applied.table, grid.cells())[1])
        said = f"{applied.directory} settles {grid.num_cells - lack} of {grid.num_cells} products"
        if differing:
            lack, said = grid.num_cells, f"{applied.directory} does not fit: {differing[0]}"
    if not lack:
        return State("done", said)
    return State(
        "to do", said, tuning_plan.minutes_for(lack, num_devices) * 60.0, lack * BYTES_A_PRODUCT
    )


def _look_at_experts(wanted: Wanted) -> State:
    name = _expert_shape(wanted)
    if name is None:
        return State(
            "cannot", "experts of other sizes than a table is made for; the shipped serves"
        )
    if not device.accelerators():
        return State(
            "cannot", "no accelerator to time on; the shipped table, predicted, serves until then"
        )
    shape = next(one for one in prediction.SHAPES if one.name == name)
    wished = [m for m in candidates.TOKENS if m <= tune_moe.LAST]
    applied = one_file_tables.EXPERTS.applied()
    if applied is None:
        said = "no table was measured here; the shipped one, predicted, would serve"
    elif differing := one_file_tables.EXPERTS.misfits(applied[0])[0]:
        said = f"{applied[1]} does not fit: {differing[0]}"
    else:
        rows = applied[0].rows
        bases = {rows[key]["basis"] for key in rows if key[:2] == (shape.experts, shape.inner)}
        if bases - {"model"}:
            return State("done", f"{applied[1]}: measured here, with these kernels")
        said = f"{applied[1]} is a model's: nothing was measured here"
        if not bases:
            said = f"{applied[1]} has no row for {name}"
    return State("to do", said, len(wished) * SECONDS_A_BATCH, len(wished) * BYTES_A_PRODUCT)


def _expert_shape(wanted: Wanted) -> str | None:
    """Return the name of the way in which a layer is cut, if tables are made for it."""
    model = served_model.read(wanted.served)
    ep = model.artifact_ep or 1
    sizes = (
        int(model.text["num_experts"]) // ep,
        int(model.text["moe_intermediate_size"]) * ep // wanted.tp,
    )
    return next((one.name for one in prediction.SHAPES if (one.experts, one.inner) == sizes), None)


# -- plan ------------------------------------------------------------------------------------------


def _node(wanted: Wanted) -> str | None:
    """Return the described node to plan for: where there is no APU, the reference one."""
    if wanted.node is None and not device.accelerators():
        return gemm_grid.REFERENCE_NODE
    return wanted.node


def _look_at_plan(wanted: Wanted) -> State:
    node = _node(wanted)
    return State("check", f"the memory of {f'the described node {node}' if node else 'this node'}")


def _plan_words(wanted: Wanted) -> list[str]:
    node = _node(wanted)
    return ["plan", *wanted.server_flags, *(["--node", node] if node else [])]


STEPS = (
    Step(
        "doctor", "what would go wrong on this machine", _look_at_machine,
        lambda wanted: ["doctor", "--model", str(wanted.model), "--tp-size", str(wanted.tp)],
        do=_doctor,
    ),
    Step(
        "shard", "weights cut for each rank, once", _look_at_artifact, _shard_words,
        places=lambda wanted: [wanted.out],
    ),
    Step(
        "golden", "what a right server says, to compare each start with", _look_at_golden,
        _golden_words,
    ),
    Step(
        "kernel-cache", "AITER's kernels, compiled ahead", _look_at_kernels,
        lambda wanted: ["kernel-cache", "build"],
        places=lambda wanted: [settings.kernel_cache_dir()],
    ),
    Step(
        "gemm-table", "dense products, tuned on this node", _look_at_products,
        lambda wanted: ["tune", "gemm", *wanted.server_flags, "--apply"],
        places=lambda wanted: [tables.root(), tables.made_here()],
    ),
    Step(
        "expert-table", "tiles of the expert layer, timed on this node", _look_at_experts,
        lambda wanted: ["tune", "moe", "--shape", str(_expert_shape(wanted))],
        places=lambda wanted: [tables.root(), tables.made_here()],
    ),
    Step("plan", "the memory of each APU", _look_at_plan, _plan_words),
)  # fmt: skip
"""In the order in which they are done."""
OPTIONAL = ("golden",)
"""Steps that are done only if asked for."""
