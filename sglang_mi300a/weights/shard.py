"""``shard-weights``: cut a Hugging Face checkpoint into what each rank loads, offline.

The output holds, for each rank, safetensors files of that rank's parameters (already cut, fused and
laid out), copies of the small files that a model directory needs, and, written last, the manifest.
Memory stays at a few buffers per job whatever the model's size. A run that was killed is taken up
again by repeating it; the bytes are the same as if it had not been.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from sglang_mi300a import artifact_manifest, shipped, whole_files
from sglang_mi300a import layout as layouts
from sglang_mi300a.artifact_manifest import FileFacts, Heads, Manifest, Part, TensorFacts, checksum
from sglang_mi300a.errors import UserError
from sglang_mi300a.weights import checkpoint as checkpoints
from sglang_mi300a.weights import model_sizes, page_cache, plan, requantising
from sglang_mi300a.weights.checkpoint import Checkpoint
from sglang_mi300a.weights.executing import Executor, Sink
from sglang_mi300a.weights.model_sizes import ModelSizes
from sglang_mi300a.weights.output_lock import PREFIX as LOCK_PREFIX
from sglang_mi300a.weights.output_lock import LockHeld, OutputLock
from sglang_mi300a.weights.part_files import Flusher, PartFile
from sglang_mi300a.weights.plan import FLOATS, Placement, RankPlan, Source, num_rows
from sglang_mi300a.weights.progress_bar import ProgressBar
from sglang_mi300a.weights.reading import Files, Ring
from sglang_mi300a.weights.resuming import DIRECTORY as PARTIAL_NAME
from sglang_mi300a.weights.resuming import Progress, Record
from sglang_mi300a.weights.steps import (
    ExpertStorage,
    Group,
    Rows,
    Stored,
    groups,
    step_bytes,
)

Bytes = NDArray[np.uint8]

DraftExperts = Literal["stored", "mxfp4"]
"""The draft's experts as the checkpoint stores them, or as MXFP4 whatever they were."""
DRAFT_EXPERTS: tuple[DraftExperts, ...] = get_args(DraftExperts)

DEFAULT_PART_BYTES = 2 << 30
DEFAULT_JOBS = 2
JOB_BUFFER_BYTES = 32 << 20
MAX_COPIED_BYTES = 64 << 20
FINISH_TIMEOUT_S = 60.0
CONFIG = "config.json"
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


@dataclass(frozen=True)
class ShardReport:
    """What a run of :func:`shard_weights` did.

    Attributes:
        output: The artifact's directory.
        ranks: Ranks that were asked for.
        missing_ranks: Ranks that still have to be made before the artifact is complete.
        num_bytes_read: Bytes read from the checkpoint's weight files in this run.
        num_bytes_written: Bytes of weights written in this run.
        num_files_kept: Files that an earlier run had finished.
        neutralised_blocks: All-zero MXFP4 blocks whose unusable scale was rewritten.
        has_draft: Whether the MTP layer is inside.
    """

    output: Path
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    num_bytes_read: int
    num_bytes_written: int
    num_files_kept: int
    neutralised_blocks: int
    has_draft: bool

    @property
    def is_complete(self) -> bool:
        """Whether the manifest was written."""
        return not self.missing_ranks


@dataclass(frozen=True)
class _PartSpec:
    """One file of every rank.

    Attributes:
        part: Target or draft.
        number: Its number in the file name.
        groups: What it holds.
    """

    part: Part
    number: int
    groups: tuple[Group, ...]

    def file(self, rank: int) -> str:
        return f"rank-{rank}/{self.part}-part-{self.number:05d}.safetensors"

    @property
    def tensors(self) -> list[Stored]:
        return [tensor for group in self.groups for tensor in group.stored]


@dataclass
class _Run:
    """Everything that the jobs of one run share."""

    output: Path
    checkpoint: Checkpoint
    sources: dict[str, Source]
    storage: dict[Part, ExpertStorage]
    tp: int
    ranks: tuple[int, ...]
    progress: Progress
    done: dict[str, Record]
    files: Files
    ring: Ring
    flusher: Flusher
    advance: Callable[[int], None]
    stop: threading.Event = field(default_factory=threading.Event)
    num_bytes_written: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Stopped(Exception):
    """Another job failed, or the user interrupted."""


def shard_weights(
    model: Path | str,
    out: Path | str,
    *,
    tp: int,
    ep: int = 1,
    ranks: Sequence[int] | None = None,
    text_only: bool = False,
    draft: bool = True,
    draft_experts: DraftExperts = "stored",
    heads: Heads = "replicated",
    layout: str | None = None,
    jobs: int = DEFAULT_JOBS,
    part_bytes: int = DEFAULT_PART_BYTES,
    ignore: Sequence[str] = (),
    sglang: str | None = None,
    progress: bool | None = None,
) -> ShardReport:
    """Write the artifact of a checkpoint; take up an earlier, unfinished run.

    Args:
        model: Directory of a Hugging Face checkpoint.
        out: Directory to make; empty, absent, or left by an earlier run of the same conversion.
        tp: Tensor-parallel ranks.
        ep: Expert-parallel ranks among them; divides ``tp``.
        ranks: Ranks to write now; default all. Runs for other ranks may go on at the same time,
            also on other machines; the manifest is written when all ranks are there.
        text_only: Leave the visual tower out and mark the copied config accordingly.
        draft: Include the MTP layer if the checkpoint has one.
        draft_experts: ``"mxfp4"`` to re-quantise the MTP layer's experts if they are floats: a
            quarter of the bytes. Drafts only propose, so no served token depends on it; how many
            are accepted does.
        heads: ``"padded"`` for SGLang's CPU engine where ranks outnumber KV heads.
        layout: Name of the layout of the expert weights; default the kernels' where every expert
            tensor fits it, else SGLang's.
        jobs: Files of a rank that are written at the same time.
        part_bytes: Bound of a file's data; only a single larger tensor group exceeds it.
        ignore: Patterns of checkpoint tensors to leave out although nothing else uses them.
        sglang: Specifier of the SGLang versions whose parameters are followed; default the
            supported ones.
        progress: Show a bar on stderr; default if stderr is a terminal.

    Raises:
        UserError: Bad input, a checkpoint that does not fit its config, a scale that must not be
            served, an output that another run holds or that holds something else, or no space.
    """
    source, output = Path(model), Path(out)
    config = _read_config(source)
    sizes = model_sizes.from_config(config, where=str(source / CONFIG))
    found = checkpoints.read(source)
    sources = found.sources()
    with_draft = draft and plan.has_draft(sources)
    _check_tower(sizes, config, text_only)
    text_only = text_only or sizes.vision is None or bool(config.get("language_model_only"))
    plan.check_placement(sizes, Placement(tp, ep, 0, heads), text_only=text_only)
    chosen = _check_ranks(ranks, tp)
    _check_at_least_one(jobs=jobs, part_bytes=part_bytes)
    plans = _plans(sizes, sources, tp, ep, heads, text_only, with_draft, str(source))
    _check_unused(source, sources, plans, text_only, ignore)
    requantised = _is_requantised(plans, draft_experts, source)
    order = _layout(layout, sizes, plans, requantised, tp, ep)
    storage: dict[Part, ExpertStorage] = dict.fromkeys(plans, order)
    if requantised:
        storage["draft"] = requantising.of_plan(plans["draft"][0], order)
    parts = [
        spec
        for part in plans
        for spec in _split(part, groups(plans[part], storage[part]), part_bytes)
    ]
    copied = _files_to_copy(source, config, text_only)
    job = {
        "tool_version": shipped.version(),
        "sglang": sglang or shipped.supported()["sglang"],
        "sizes": sizes.digest(),
        "source": [[file.name, file.size, file.xxh3_128] for file in found.files],
        "tp": tp,
        "ep": ep,
        "heads": heads,
        "text_only": text_only,
        "has_draft": with_draft,
        "draft_requantised": requantised,
        "layout": order.id,
        "part_bytes": part_bytes,
        "copied": [[name, len(data), checksum(data)] for name, data in copied],
    }
    _prepare_output(output, source)
    with _written_to(output), ExitStack() as locks:
        for rank in chosen:
            locks.enter_context(OutputLock(output, f"rank-{rank}"))
        finished = _already_complete(output, job, chosen)
        if finished is not None:
            return finished
        _check_foreign_files(output)
        records = Progress(output)
        done = records.start(job)
        wanted = [spec.file(rank) for spec in parts for rank in chosen]
        _check_space(output, [s for s in parts for r in chosen if s.file(r) not in done])
        with Files() as files, Flusher() as flusher, _bar(parts, chosen, done, progress) as bar:
            run = _Run(
                output,
                found,
                sources,
                storage,
                tp,
                chosen,
                records,
                done,
                files,
                Ring(jobs * _buffer_bytes(parts, sources), jobs),
                flusher,
                bar.advance,
            )
            kept = sum(name in done for name in wanted)
            _run_jobs(run, parts, jobs)
        page_cache.drop({tensor.file for tensor in found.tensors.values()})  # their headers
        neutralised_blocks = sum(done[s.file(chosen[0])].neutralised_blocks for s in parts)
        return ShardReport(
            output=output,
            ranks=chosen,
            missing_ranks=_finish(output, job, parts, copied, found),
            num_bytes_read=files.counts.num_bytes,
            num_bytes_written=run.num_bytes_written,
            num_files_kept=kept,
            neutralised_blocks=neutralised_blocks,
            has_draft=with_draft,
        )


# -- before anything is written --------------------------------------------------------------------


def _read_config(model: Path) -> dict[str, Any]:
    path = model / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            str(path),
            found=f"not readable ({error.strerror})",
            allowed="the directory of a Hugging Face checkpoint",
            do="give the directory that holds config.json and the *.safetensors files",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            str(path),
            found=f"no JSON ({error})",
            allowed="a model's config.json",
            do="fetch the file again",
        ) from error
    if artifact_manifest.is_artifact(model):
        raise UserError(
            str(model),
            found="an artifact of shard-weights",
            allowed="a Hugging Face checkpoint",
            do="give the checkpoint that the artifact was made from",
        )
    if not isinstance(config, dict):
        raise UserError(
            str(path), found="no JSON object", allowed="a model's config.json", do="fetch it again"
        )
    return config


def _check_ranks(ranks: Sequence[int] | None, tp: int) -> tuple[int, ...]:
    chosen = tuple(sorted(set(range(tp) if ranks is None else ranks)))
    if not chosen or chosen[0] < 0 or chosen[-1] >= tp:
        raise UserError(
            "--ranks",
            found=",".join(map(str, chosen)) or "none",
            allowed=f"ranks 0 to {tp - 1} of --tp {tp}",
            do="name ranks below --tp",
        )
    return chosen


def _check_at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UserError(
                name, found=str(value), allowed="at least 1", do=f"raise {name}, or leave it out"
            )


def _check_tower(sizes: ModelSizes, config: dict[str, Any], text_only: bool) -> None:
    if not text_only and sizes.vision is None and not config.get("language_model_only"):
        raise UserError(
            CONFIG,
            found="no vision_config, and no language_model_only",
            allowed="a config with a visual tower, or one marked text-only",
            do="pass --text-only",
        )


def _plans(
    sizes: ModelSizes,
    sources: dict[str, Source],
    tp: int,
    ep: int,
    heads: Heads,
    text_only: bool,
    with_draft: bool,
    where: str,
) -> dict[Part, list[RankPlan]]:
    """Return the plans of all ranks: also of those not written now, as what is read is the same."""
    parts: tuple[Part, ...] = ("target", "draft") if with_draft else ("target",)
    return {
        part: [
            plan.make(
                sizes,
                sources,
                Placement(tp, ep, rank, heads),
                part,
                text_only=text_only,
                where=where,
            )
            for rank in range(tp)
        ]
        for part in parts
    }


def _check_unused(
    model: Path,
    sources: dict[str, Source],
    plans: dict[Part, list[RankPlan]],
    text_only: bool,
    ignore: Sequence[str],
) -> None:
    one_rank = [of_part[0] for of_part in plans.values()]
    left = plan.unused(sources, one_rank, text_only=text_only, ignore=ignore)
    if left:
        raise UserError(
            str(model),
            found=f"{len(left)} tensors that the model has no place for, first {left[0]}",
            allowed="every tensor used",
            do="check that the checkpoint is of this architecture; if these tensors mean nothing, "
            f"pass --ignore-tensor {left[0]!r} (a pattern)",
        )


def _split(part: Part, all_groups: list[Group], part_bytes: int) -> list[_PartSpec]:
    specs: list[_PartSpec] = []
    held: list[Group] = []
    for group in all_groups:
        if held and sum(g.size for g in held) + group.size > part_bytes:
            specs.append(_PartSpec(part, len(specs), tuple(held)))
            held = []
        held.append(group)
    return [*specs, _PartSpec(part, len(specs), tuple(held))]


def _files_to_copy(model: Path, config: dict[str, Any], text_only: bool) -> list[tuple[str, bytes]]:
    """Return name and content of what a model directory needs beside weights."""
    copied = []
    for path in sorted(model.iterdir()):
        if path.name.startswith(".") or path.name.endswith(_NOT_COPIED) or not path.is_file():
            continue
        if path.stat().st_size > MAX_COPIED_BYTES:
            raise UserError(
                str(path),
                found=f"{path.stat().st_size} bytes",
                allowed=f"files of at most {MAX_COPIED_BYTES} bytes beside the weights",
                do="move it out of the model directory if the model does not need it",
            )
        data = path.read_bytes()
        if path.name == CONFIG and text_only and config.get("language_model_only") is not True:
            marked = {**config, "language_model_only": True}
            data = (json.dumps(marked, indent=2, ensure_ascii=False) + "\n").encode()
        copied.append((path.name, data))
    return copied


def _is_requantised(
    plans: dict[Part, list[RankPlan]], draft_experts: DraftExperts, model: Path
) -> bool:
    """Return whether the draft's experts are to be quantised, and are not yet."""
    if draft_experts == "stored":
        return False
    if "draft" not in plans:
        raise UserError(
            "--draft-experts mxfp4",
            found="no draft to make",
            allowed="a checkpoint with mtp.* tensors, without --no-draft",
            do=f"leave the option out, or check that {model} is complete",
        )
    experts = (p for p in plans["draft"][0].parameters if p.num_local_experts)
    return any(parameter.dtype in FLOATS for parameter in experts)


def _layout(
    asked: str | None,
    sizes: ModelSizes,
    plans: dict[Part, list[RankPlan]],
    requantised: bool,
    tp: int,
    ep: int,
) -> layouts.Layout:
    """Return how experts are laid out; without MXFP4 ones there is nothing to move."""
    if asked is not None:
        return layouts.named(asked, where="--layout")
    experts = [p for plans_ in plans.values() for p in plans_[0].parameters if p.num_local_experts]
    if not requantised and all(parameter.dtype in FLOATS for parameter in experts):
        return layouts.PLAIN
    return layouts.default_for(sizes.hidden_size, sizes.moe_intermediate_size * ep // tp)


# -- the output ------------------------------------------------------------------------------------


def _prepare_output(output: Path, model: Path) -> None:
    if output.resolve() == model.resolve():
        raise UserError(
            "--out",
            found="the checkpoint's own directory",
            allowed="another directory",
            do="choose an empty directory",
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            str(output),
            found=f"no directory can be made ({error.strerror})",
            allowed="a directory that can be written",
            do="choose another --out",
        ) from error


@contextmanager
def _written_to(output: Path) -> Iterator[None]:
    """Turn a failed write into words; what was finished before stays."""
    try:
        yield
    except OSError as error:
        raise UserError(
            str(output),
            found=f"a write that failed ({error.strerror})",
            allowed="a file system that takes the artifact",
            do="free space or choose another --out; repeating the command goes on from here",
        ) from error


def _already_complete(
    output: Path, job: dict[str, Any], ranks: tuple[int, ...]
) -> ShardReport | None:
    """Return a report if the directory already holds just this artifact.

    Raises:
        UserError: It holds another one.
    """
    if not artifact_manifest.is_artifact(output):
        return None
    manifest = artifact_manifest.read(output)
    same = {
        "tool_version": manifest.tool_version,
        "sglang": manifest.sglang,
        "sizes": manifest.sizes_xxh3_128,
        "source": [[file.name, file.size, file.xxh3_128] for file in manifest.source_files],
        "tp": manifest.tp,
        "ep": manifest.ep,
        "heads": manifest.heads,
        "text_only": manifest.text_only,
        "has_draft": manifest.has_draft,
        "draft_requantised": manifest.draft_requantised,
        "layout": manifest.layout,
        "copied": [[file.name, file.size, file.xxh3_128] for file in manifest.copied],
    }
    different = sorted(key for key, value in same.items() if job[key] != value)
    if different:
        raise UserError(
            str(output),
            found=f"a complete artifact that differs in {', '.join(different)}",
            allowed="an empty directory, or the same artifact",
            do=f"choose another --out, or delete {output}",
        )
    with _waited_for(OutputLock(output, "end")):
        Progress(output).end()  # in case it was killed just before it did this itself
    return ShardReport(
        output,
        ranks,
        (),
        num_bytes_read=0,
        num_bytes_written=0,
        num_files_kept=sum(f"rank-{rank}/" in f.name for f in manifest.files for rank in ranks),
        neutralised_blocks=manifest.neutralised_blocks,
        has_draft=manifest.has_draft,
    )


def _check_foreign_files(output: Path) -> None:
    if (output / PARTIAL_NAME).is_dir():
        return
    names = (path.name for path in output.iterdir())
    foreign = sorted(name for name in names if not name.startswith((LOCK_PREFIX, PARTIAL_NAME)))
    if foreign:
        raise UserError(
            str(output),
            found=f"a directory with {len(foreign)} other files, first {foreign[0]}",
            allowed="an empty directory, or one left by an unfinished run",
            do="choose another --out",
        )


def _check_space(output: Path, to_do: list[_PartSpec]) -> None:
    needed = sum(group.size for spec in to_do for group in spec.groups)
    free = shutil.disk_usage(output).free
    if needed > free:
        raise UserError(
            str(output),
            found=f"{free / 1e9:.1f} GB free",
            allowed=f"{needed / 1e9:.1f} GB of weights still to be written",
            do="choose an --out with more space, or write fewer --ranks there",
        )


# -- the work --------------------------------------------------------------------------------------


def _run_jobs(run: _Run, parts: list[_PartSpec], jobs: int) -> None:
    for rank in run.ranks:
        (run.output / f"rank-{rank}").mkdir(exist_ok=True)
    whole_files.sync(run.output)
    to_do = [s for s in parts if any(s.file(rank) not in run.done for rank in run.ranks)]
    with ThreadPoolExecutor(jobs, thread_name_prefix="shard-weights") as pool:
        futures = [pool.submit(_make_part, run, spec) for spec in to_do]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            errors = [e for e in (f.exception() for f in finished) if e is not None]
        finally:
            run.stop.set()
            for future in futures:
                future.cancel()
    real = [error for error in errors if not isinstance(error, _Stopped)]
    if real:
        raise real[0]


def _make_part(run: _Run, spec: _PartSpec) -> None:
    """Write one file of every chosen rank that lacks it, then its records."""
    lacking = [rank for rank in run.ranks if spec.file(rank) not in run.done]
    written = 0

    def wrote(num_bytes: int) -> None:
        nonlocal written
        if run.stop.is_set():
            raise _Stopped
        written += num_bytes
        run.advance(num_bytes)

    seen = _SourceChecksums(run.sources)
    files = {
        r: PartFile(run.output / spec.file(r), spec.tensors, wrote, run.flusher) for r in lacking
    }
    nowhere = _Nowhere()
    sinks: list[Sink] = [files.get(rank, nowhere) for rank in range(run.tp)]
    try:
        for file in files.values():
            file.open()
        with run.ring.buffer() as buffer:
            executor = Executor(
                run.checkpoint,
                run.sources,
                run.files,
                buffer,
                run.storage[spec.part],
                seen.update,
            )
            for group in spec.groups:
                executor.make(group, sinks)
        rows = {rank: file.finish() for rank, file in files.items()}
    finally:
        for file in files.values():
            file.abandon()
    for rank, file in files.items():
        whole_files.sync(file.path.parent)
        record = Record(
            spec.file(rank),
            file.size,
            tuple(rows[rank]),
            seen.complete(),
            executor.neutralised_blocks,
        )
        run.progress.add(record)
        with run.lock:
            run.done[record.file] = record
            run.num_bytes_written += file.size


class _Nowhere:
    """The sink of a rank that is not written now."""

    def start_thread(self) -> None:
        """Need nothing."""

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Drop the bytes."""


class _SourceChecksums:
    """Checksums of checkpoint tensors, taken from what is read anyway.

    A tensor that holds all experts is read expert by expert, not always in order: each expert's
    share has a checksum of its own, and the tensor's is that of theirs.
    """

    def __init__(self, sources: dict[str, Source]) -> None:
        self._sources = sources
        self._hashers: dict[tuple[str, int], Any] = {}
        self._next_row: dict[tuple[str, int], int] = {}

    def update(self, rows: Rows, data: Bytes) -> None:
        """Take rows; those of one unit come in order."""
        unit_rows = self._unit_rows(rows.source)
        unit = rows.start // unit_rows
        key = (rows.source, unit)
        hasher = self._hashers.setdefault(key, xxhash.xxh3_128())
        at = self._next_row.get(key, unit * unit_rows)
        if rows.start == at and rows.stop <= (unit + 1) * unit_rows:
            hasher.update(np.ascontiguousarray(data))
            self._next_row[key] = rows.stop

    def complete(self) -> dict[str, str]:
        """Return the checksums of tensors that were read to the end, by name."""
        result = {}
        for name in {name for name, _ in self._hashers}:
            unit_rows = self._unit_rows(name)
            num_units = num_rows(self._sources[name].shape) // unit_rows
            units = [(name, unit) for unit in range(num_units)]
            if all(self._next_row.get(u) == (u[1] + 1) * unit_rows for u in units):
                digests = [self._hashers[unit].hexdigest() for unit in units]
                result[name] = digests[0] if num_units == 1 else checksum("".join(digests).encode())
        return result

    def _unit_rows(self, name: str) -> int:
        shape = self._sources[name].shape
        is_stack = len(shape) == 3 and name.endswith((".gate_up_proj", ".experts.down_proj"))
        return shape[1] if is_stack else num_rows(shape)


def _buffer_bytes(parts: list[_PartSpec], sources: dict[str, Source]) -> int:
    """Return the size of a job's buffer: it must hold what one expert slot of all ranks needs."""
    stacks = (group for spec in parts for group in spec.groups if group.is_expert_stack)
    return max([JOB_BUFFER_BYTES, *(step_bytes(group, sources) for group in stacks)])


# -- the end ---------------------------------------------------------------------------------------


def _finish(
    output: Path,
    job: dict[str, Any],
    parts: list[_PartSpec],
    copied: list[tuple[str, bytes]],
    found: Checkpoint,
) -> tuple[int, ...]:
    """Complete the artifact if every rank is there; return the ranks that are not.

    Runs for different ranks may end at the same time: one does this, the others wait for it.
    """
    with _waited_for(OutputLock(output, "end")):
        if artifact_manifest.is_artifact(output):
            return ()
        records = Progress(output)
        done = records.finished()
        missing = tuple(
            rank for rank in range(job["tp"]) if any(s.file(rank) not in done for s in parts)
        )
        if missing:
            return missing
        for name, data in copied:
            whole_files.write(output / name, data)
        text = _manifest(job, parts, done, found).render()
        artifact_manifest.parse(text, output / artifact_manifest.NAME)
        whole_files.write(output / artifact_manifest.NAME, text.encode())
        records.end()
        return ()


@contextmanager
def _waited_for(lock: OutputLock) -> Iterator[None]:
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while True:
        try:
            with lock:
                yield
                return
        except LockHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _manifest(
    job: dict[str, Any],
    parts: list[_PartSpec],
    done: dict[str, Record],
    found: Checkpoint,
) -> Manifest:
    tp: int = job["tp"]
    files, tensors = [], []
    data: dict[str, str] = {}
    for rank in range(tp):
        for spec in parts:
            record = done[spec.file(rank)]
            files.append(FileFacts(record.file, record.size))
            data.update(record.sources)
            stored = {tensor.name: tensor for tensor in spec.tensors}
            for name, offset, digest in record.tensors:
                facts = stored[name]
                tensors.append(
                    TensorFacts(
                        rank, spec.part, name, record.file, offset, facts.dtype, facts.shape, digest
                    )
                )
    lines = "".join(f"{name}:{data[name]}\n" for name in sorted(data))
    return Manifest(
        tool_version=job["tool_version"],
        sglang=job["sglang"],
        architecture=model_sizes.ARCHITECTURE,
        sizes_xxh3_128=job["sizes"],
        source_files=found.files,
        source_data_xxh3_128=checksum(lines.encode()),
        source_num_tensors=len(data),
        tp=tp,
        ep=job["ep"],
        heads=job["heads"],
        text_only=job["text_only"],
        has_draft=job["has_draft"],
        draft_requantised=job["draft_requantised"],
        layout=job["layout"],
        neutralised_blocks=sum(done[spec.file(0)].neutralised_blocks for spec in parts),
        copied=tuple(FileFacts(*row) for row in job["copied"]),
        files=tuple(files),
        tensors=tuple(tensors),
    )


def _bar(
    parts: list[_PartSpec], ranks: tuple[int, ...], done: dict[str, Record], wanted: bool | None
) -> ProgressBar:
    sizes = [(s.file(rank), sum(g.size for g in s.groups)) for s in parts for rank in ranks]
    return ProgressBar(
        "shard-weights",
        sum(size for _, size in sizes),
        done_bytes=sum(size for name, size in sizes if name in done),
        wanted=wanted,
    )
