"""The loader class behind ``--load-format private``."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.layernorm import GemmaRMSNorm
from sglang.srt.model_loader.loader import (
    BaseModelLoader,
    DefaultModelLoader,
    _get_quantization_config,
    _initialize_model,
)
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.runtime_context import get_parallel
from sglang.version import __version__ as sglang_version

from sglang_mi300a import artifact_manifest, served_model, supported
from sglang_mi300a import layout as layouts
from sglang_mi300a.artifact_manifest import Heads, Part
from sglang_mi300a.errors import UserError
from sglang_mi300a.rank_agreement import AllGather, alone, on_every_rank
from sglang_mi300a.weights import artifact as artifacts
from sglang_mi300a.weights import checkpoint as checkpoints
from sglang_mi300a.weights import filling, model_sizes, page_cache, plan
from sglang_mi300a.weights.filling import LoadReport
from sglang_mi300a.weights.loader_options import FLAG, LoaderOptions
from sglang_mi300a.weights.model_sizes import ModelSizes
from sglang_mi300a.weights.parameter_sink import TORCH_DTYPES, ParameterSink
from sglang_mi300a.weights.plan import FLOATS, Placement
from sglang_mi300a.weights.progress_bar import ProgressBar
from sglang_mi300a.weights.steps import Stored, groups

logger = logging.getLogger(__name__)

_KV_CACHE_SCALES = (".attn.k_scale", ".attn.v_scale")
_EXPERTS = ".mlp.experts."
_DRAFT_MODULES = "mtp."
_ALL_OF_THE_DRAFT_BUT_ITS_EXPERTS = r"re:mtp\.(?!layers\.\d+\.mlp\.experts$)"
"""As SGLang's Quark configuration matches module names against its exclude list."""


class PrivateModelLoader(BaseModelLoader):
    """Builds SGLang's stock model and fills its parameters in place, from bounded reads.

    The model directory is either an artifact of ``shard-weights`` or a Hugging Face checkpoint.
    Serves target and draft, in one process or each alone.

    Attributes:
        before_first_byte: Called before anything of a model is read; may raise.
        after_load: Called with each loaded model and whether it is the draft.
        on_refusal: Called with the reason where a model is not loaded.
        all_gather: Brings the ranks' results together: all load, or none goes on.
        layout_id: Layout that this process's expert kernels read.
        default_options: Options that ``--model-loader-extra-config`` overrides.
        reports: What was read last, by ``"target"`` and ``"draft"``.
    """

    before_first_byte: ClassVar[Callable[[], None] | None] = None
    after_load: ClassVar[Callable[[torch.nn.Module, bool], None] | None] = None
    on_refusal: ClassVar[Callable[[str], None] | None] = None
    all_gather: ClassVar[AllGather] = staticmethod(alone)
    layout_id: ClassVar[str] = layouts.PLAIN.id
    default_options: ClassVar[Mapping[str, Any]] = {}
    reports: ClassVar[dict[str, LoadReport]] = {}

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        given = load_config.model_loader_extra_config or {}
        self.options = LoaderOptions.from_mapping({**self.default_options, **given})

    def download_model(self, model_config: ModelConfig) -> None:
        """Do nothing: models are local directories."""

    def load_model(
        self, *, model_config: ModelConfig, device_config: DeviceConfig
    ) -> torch.nn.Module:
        """Return the loaded model.

        Raises:
            UserError: Directory, model and parallel sizes do not belong together, or a byte is
                not what it should be.
        """
        cls = type(self)
        if cls.before_first_byte is not None:
            cls.before_first_byte()
        try:
            wanted, model = self._load(model_config, torch.device(device_config.device))
        except UserError as error:
            if cls.on_refusal is not None:
                cls.on_refusal(str(error))
            raise
        loaded: torch.nn.Module = model.eval()
        if cls.after_load is not None:
            cls.after_load(loaded, wanted.part == "draft")
        return loaded

    def _load(
        self, model_config: ModelConfig, target_device: torch.device
    ) -> tuple[_Wanted, torch.nn.Module]:
        cls = type(self)
        with on_every_rank(cls.all_gather):
            wanted = _Wanted.of(model_config, self.load_config)
            content = self._open(wanted)
        quant_config = _get_quantization_config(model_config, self.load_config)
        if wanted.part == "draft":
            quant_config = _as_stored(quant_config, content)
        with set_default_torch_dtype(model_config.dtype):
            with target_device:
                model = _initialize_model(model_config, self.load_config, quant_config)
            with on_every_rank(cls.all_gather):
                sink = ParameterSink(_matched(model, content, wanted), content.stored)
                report = self._fill(wanted, content, sink)
            page_cache.drop(content.files)  # now that no rank of this node reads them any more
            _recompute_buffers(model)
            # Stock's own end of a load: with no weights left to hand over, what remains is the
            # bookkeeping of the model class and each quantisation method's post-processing.
            DefaultModelLoader.load_weights_and_postprocess(model, iter(()), target_device)
        cls.reports[wanted.part] = report
        return wanted, model

    def _fill(self, wanted: _Wanted, content: _Content, sink: ParameterSink) -> LoadReport:
        rank = wanted.at.rank
        notes = []
        if self.options.read_into_parameters:
            notes.append(f"; read into parameters: {sink.read_straight().why}")
        if not content.is_artifact and rank == 0 and wanted.part == "target":
            # Not through logging: it is for whoever starts the server, at any log level.
            print(
                f"sglang-mi300a: {wanted.directory} is a Hugging Face checkpoint: every start cuts "
                "it anew. An artifact loads faster; make it once: sglang-mi300a shard-weights "
                f"--model {shlex.quote(str(wanted.directory))} --out DIR --tp {wanted.at.tp}"
                + (f" --ep {wanted.at.ep}" if wanted.at.ep > 1 else "")
                + (" --text-only" if wanted.text_only else ""),
                file=sys.stderr,
                flush=True,
            )
        num_bytes = sum(tensor.size for tensor in content.stored.values())
        with ProgressBar(f"rank {rank} {wanted.part}", num_bytes, line=rank, stays=False) as bar:
            report = content.fill(sink, self.options, bar.advance)
        logger.info(
            "Loaded %s of rank %d from %s %s: %s%s",
            wanted.part,
            rank,
            report.origin,
            wanted.directory,
            report.in_words(),
            "".join(notes),
        )
        return report

    def _open(self, wanted: _Wanted) -> _Content:
        if artifact_manifest.is_artifact(wanted.directory):
            return _from_artifact(wanted, self.layout_id)
        return _from_checkpoint(wanted, self.layout_id, self.options)


@dataclass(frozen=True)
class _Wanted:
    """What SGLang asks for.

    Attributes:
        directory: The model.
        part: Which model of it.
        sizes: By the directory's config.json.
        at: This rank, and what became of heads that do not divide.
        text_only: Whether the model is built without a visual tower.
    """

    directory: Path
    part: Part
    sizes: ModelSizes
    at: Placement
    text_only: bool

    @classmethod
    def of(cls, model_config: ModelConfig, load_config: LoadConfig) -> _Wanted:
        directory = Path(model_config.model_path)
        if not directory.is_dir():
            raise UserError(
                str(directory),
                found="no such directory",
                allowed="a local directory: an artifact of shard-weights, or a checkpoint",
                do="download the model first",
            )
        hf_config = model_config.hf_config
        architecture = hf_config.architectures[0]
        parts: dict[str, Part] = {
            model_sizes.ARCHITECTURE: "target",
            model_sizes.DRAFT_ARCHITECTURE: "draft",
        }
        if architecture not in parts or load_config.draft_model_idx is not None:
            raise UserError(
                "--load-format private",
                found=f"architecture {architecture}"
                + ("" if load_config.draft_model_idx is None else " with several draft layers"),
                allowed=" or ".join(parts),
                do="serve other models with SGLang's own load formats",
            )
        config = served_model.read_config(directory)
        sizes = model_sizes.from_config(config, where=str(directory / "config.json"))
        built = model_config.hf_text_config.num_attention_heads
        heads: Heads = "replicated" if built == sizes.num_attention_heads else "padded"
        return cls(
            directory=directory,
            part=parts[architecture],
            sizes=sizes,
            at=_placement(heads),
            text_only=bool(getattr(hf_config, "language_model_only", False)),
        )


def _placement(heads: Heads) -> Placement:
    parallel = get_parallel()
    found = {
        "pipeline stages": parallel.pp_size,
        "attention data-parallel groups": parallel.tp_size // parallel.attn_tp_size,
        "decode context-parallel groups": parallel.attn_dcp_size,
        "expert data-parallel groups": parallel.tp_size
        // (parallel.moe_ep_size * parallel.moe_tp_size),
    }
    many = [f"{size} {name}" for name, size in found.items() if size != 1]
    if many:
        raise UserError(
            "--load-format private",
            found=", ".join(many),
            allowed="tensor and expert parallelism alone",
            do="serve with --tp-size and --ep-size only",
        )
    return Placement(parallel.tp_size, parallel.moe_ep_size, parallel.tp_rank, heads)


@dataclass(frozen=True)
class _Content:
    """What a directory offers for one rank.

    Attributes:
        directory: The directory, for errors.
        stored: Every tensor by parameter name.
        lent: Parameters that it does not hold and need not.
        sparse: Tensors of which some rows are not written and must be zero.
        files: What is read, or was copied here to be; none of it is to stay in the page cache.
        is_artifact: Whether ``shard-weights`` made it.
        fill: Reads them all into a sink, telling of the bytes as they come.
    """

    directory: Path
    stored: dict[str, Stored]
    lent: dict[str, tuple[int, ...]]
    sparse: frozenset[str]
    files: frozenset[Path]
    is_artifact: bool
    fill: Callable[[ParameterSink, LoaderOptions, Callable[[int], None]], LoadReport]


def _from_artifact(wanted: _Wanted, layout_id: str) -> _Content:
    directory = wanted.directory
    artifact = artifacts.read(directory)
    manifest = artifact.manifest
    where = str(directory / artifact_manifest.NAME)
    again = "run shard-weights again on the checkpoint"
    _agree(where, "layout", manifest.layout, layout_id, f"{again} (layout {layout_id})")
    _agree(
        where,
        "sizes of the model",
        manifest.sizes_xxh3_128,
        wanted.sizes.digest(),
        "put the artifact's own config.json back; sizes cannot be changed after sharding",
    )
    _agree(
        where,
        "TP, EP",
        f"{manifest.tp}, {manifest.ep}",
        f"{wanted.at.tp}, {wanted.at.ep}",
        f"pass --tp-size {manifest.tp} --ep-size {manifest.ep}, or {again} with "
        f"--tp {wanted.at.tp} --ep {wanted.at.ep}",
    )
    if plan.built_heads(wanted.sizes, wanted.at) != plan.built_heads(
        wanted.sizes, Placement(manifest.tp, manifest.ep, 0, manifest.heads)
    ):
        _agree(
            where,
            "heads",
            manifest.heads,
            wanted.at.heads,
            f"{again} for the engine that serves it (the CPU engine pads heads)",
        )
    if wanted.part == "target":
        _agree(
            where,
            "text-only",
            str(manifest.text_only),
            str(wanted.text_only),
            "serve the artifact's config.json as it is, without overriding language_model_only",
        )
    elif not manifest.has_draft:
        _agree(where, "draft", "absent", "present", f"{again} without --no-draft")
    if not supported.fits(sglang_version, manifest.sglang):
        _agree(where, "SGLang", manifest.sglang, sglang_version, again)
    tensors = artifacts.check_files(artifact, wanted.at.rank, wanted.part)

    def fill(
        sink: ParameterSink, options: LoaderOptions, advance: Callable[[int], None]
    ) -> LoadReport:
        return filling.from_artifact(artifact, tensors, sink, options, advance)

    return _Content(
        directory,
        {t.name: Stored(t.name, t.dtype, t.shape) for t in tensors},
        plan.lent(wanted.sizes, wanted.at, wanted.part),
        frozenset(),
        frozenset(
            {directory / artifact_manifest.NAME}
            | {artifact.path(t) for t in manifest.tensors if t.rank == wanted.at.rank}
        ),
        True,
        fill,
    )


def _agree(where: str, what: str, found: str, wanted: str, do: str) -> None:
    if found != wanted:
        raise UserError(where, found=f"{what}: {found}", allowed=f"{what}: {wanted}", do=do)


def _from_checkpoint(wanted: _Wanted, layout_id: str, options: LoaderOptions) -> _Content:
    checkpoint = checkpoints.read(wanted.directory)
    sources = checkpoint.sources()
    where = str(wanted.directory)
    if wanted.part == "draft" and not plan.has_draft(sources):
        raise UserError(
            where,
            found="no mtp.* tensors",
            allowed="a checkpoint with its MTP layer",
            do="serve without speculative decoding, or fetch the complete checkpoint",
        )
    layout = layouts.named(layout_id, where="expert kernels of this process")
    ours = plan.make(
        wanted.sizes, sources, wanted.at, wanted.part, text_only=wanted.text_only, where=where
    )
    left = plan.unused(sources, [ours], text_only=wanted.text_only, ignore=options.ignore_tensors)
    if left:
        raise UserError(
            where,
            found=f"{len(left)} tensors that the model has no place for, first {left[0]}",
            allowed="every tensor used",
            do="check that the checkpoint is of this architecture; if these tensors mean nothing, "
            f"list them as ignore_tensors in {FLAG}",
        )

    def fill(
        sink: ParameterSink, options: LoaderOptions, advance: Callable[[int], None]
    ) -> LoadReport:
        return filling.from_checkpoint(ours, checkpoint, layout, sink, options, advance)

    return _Content(
        wanted.directory,
        {t.name: t for group in groups([ours], layout) for t in group.stored},
        plan.lent(wanted.sizes, wanted.at, wanted.part),
        frozenset(p.name for p in ours.parameters if not p.is_filled),
        frozenset(tensor.file for tensor in checkpoint.tensors.values()),
        False,
        fill,
    )


def _as_stored(quant_config: Any, content: _Content) -> Any:
    """Return the configuration with which stock builds the draft as its experts are stored.

    Stock decides by names: any ``mtp.*`` in Quark's exclude list, and the draft is built in floats.
    What is stored decides here: experts in MXFP4 get MXFP4 parameters, everything else of the draft
    stays as it is; experts in floats get a draft without quantisation.
    """
    if quant_config is None or quant_config.get_name() != "quark":
        return quant_config
    experts = [t for name, t in content.stored.items() if _EXPERTS in name]
    if all(tensor.dtype in FLOATS for tensor in experts):
        return None
    others = [name for name in quant_config.exclude_layers if not name.startswith(_DRAFT_MODULES)]
    quant_config.exclude_layers = [*others, _ALL_OF_THE_DRAFT_BUT_ITS_EXPERTS]
    return quant_config


def _matched(
    model: torch.nn.Module, content: _Content, wanted: _Wanted
) -> dict[str, torch.nn.Parameter]:
    """Return the model's parameters by name, each with a stored tensor that fits.

    Parameters that nothing is stored for are zeroed (lent ones) or keep what the model was built
    with (scales of an FP8 KV cache, whose absence from a checkpoint means 1).
    """
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if not name.endswith(_KV_CACHE_SCALES)
    }
    for name, shape in content.lent.items():
        parameter = parameters.pop(name, None)
        if parameter is not None:
            _check_shape(content, name, shape, parameter)
            parameter.data.zero_()
    _check_names("lacks", set(parameters) - set(content.stored), content, wanted)
    _check_names("has no place for", set(content.stored) - set(parameters), content, wanted)
    for name, parameter in parameters.items():
        stored = content.stored[name]
        _check_shape(content, name, stored.shape, parameter)
        is_float = stored.dtype in FLOATS and parameter.dtype.is_floating_point
        if not is_float and TORCH_DTYPES.get(stored.dtype) is not parameter.dtype:
            raise UserError(
                f"{content.directory}: {name}",
                found=f"type {stored.dtype}",
                allowed=f"{parameter.dtype} of the model",
                do="check that quantization_config in config.json names this checkpoint's modules",
            )
        if name in content.sparse:
            parameter.data.zero_()
    return parameters


def _check_names(problem: str, names: set[str], content: _Content, wanted: _Wanted) -> None:
    if not names:
        return
    chosen = sorted(names)
    hint = "use an artifact or checkpoint of this very model, or shard it again"
    if all(name.startswith("visual.") for name in chosen):
        hint = "build the model as it was sharded: with or without --text-only on both sides"
    raise UserError(
        str(content.directory),
        found=f"the {wanted.part} {problem} {len(chosen)} parameters, first {chosen[0]}",
        allowed="the parameters of SGLang's model, all and no more",
        do=hint,
    )


def _check_shape(
    content: _Content, name: str, shape: tuple[int, ...], parameter: torch.nn.Parameter
) -> None:
    if tuple(parameter.shape) == shape and parameter.is_contiguous():
        return
    hint = "use an artifact or checkpoint of this very model, or shard it again"
    if _EXPERTS in name:
        hint = (
            "pass --disable-shared-experts-fusion if the model has one expert too many; unset "
            "SGLANG_USE_AITER's padding by choosing a TP size that keeps whole 128-byte rows"
        )
    raise UserError(
        f"{content.directory}: {name}",
        found=f"shape {list(shape)}",
        allowed=f"shape {list(parameter.shape)} of the model"
        + ("" if parameter.is_contiguous() else ", contiguous"),
        do=hint,
    )


def _recompute_buffers(model: torch.nn.Module) -> None:
    """Set the buffers that stock's weight loaders derive from weights."""
    for module in _modules(model, GemmaRMSNorm):
        module._weight_loader(module.weight, module.weight.data)  # gemma_weight = 1 + weight


def _modules(model: torch.nn.Module, kind: type) -> Iterable[Any]:
    return (module for module in model.modules() if isinstance(module, kind))
