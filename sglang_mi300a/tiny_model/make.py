"""Makes tiny checkpoints, and the unquantised twin of an MXFP4 one."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_mi300a import mxfp4
from sglang_mi300a.errors import UserError
from sglang_mi300a.tiny_model import checkpoint, configs, tokenizer, weights
from sglang_mi300a.tiny_model.sizes import TinySizes
from sglang_mi300a.tiny_model.values import Values

if TYPE_CHECKING:
    import torch

DENSE = "dense"
MOE_BF16 = "qwen3_5-moe-bf16"
MOE_MXFP4 = "qwen3_5-moe-mxfp4"
KINDS = (DENSE, MOE_BF16, MOE_MXFP4)


@dataclass(frozen=True)
class TinyModel:
    """What was made.

    Attributes:
        path: The checkpoint's folder.
        kind: One of ``KINDS``.
        seed: Seed of the weights.
        echo: Whether its MTP drafts get accepted.
        mtp: Whether it has an MTP layer.
        visual: Whether it has a vision tower.
        sizes: Its sizes.
        num_tensors: Tensors in the checkpoint.
        num_files: Safetensors files.
        weight_bytes: Bytes of all tensors.
        num_tokens: Tokens of its tokenizer; ids from there to ``sizes.vocab`` are never said.
    """

    path: Path
    kind: str
    seed: int
    echo: bool
    mtp: bool
    visual: bool
    sizes: TinySizes
    num_tensors: int
    num_files: int
    weight_bytes: int
    num_tokens: int


def make_tiny_model(
    out: Path,
    *,
    kind: str,
    seed: int = 0,
    echo: bool = False,
    mtp: bool = True,
    visual: bool = False,
    sizes: TinySizes | None = None,
) -> TinyModel:
    """Write a tiny checkpoint with random weights into ``out`` and return what was made.

    The same arguments give the same bytes. The two MoE kinds of one seed hold the same values, the
    MXFP4 one with its routed experts quantised. The folder appears whole or not at all.

    The model says whole words only, which tokenised again give the same ids, and never an end of
    text: a reply ends at the asked number of tokens.

    Args:
        out: Folder to make; may exist if empty, or if it holds exactly this model.
        kind: ``dense`` (Qwen3), ``qwen3_5-moe-bf16``, or ``qwen3_5-moe-mxfp4`` (stored as
            amd/Qwen3.5-397B-A17B-MXFP4 is).
        seed: Seed of the weights.
        echo: Make the next token hang mostly on the last, so that MTP drafts get accepted.
        mtp: Add the MTP layer (MoE kinds).
        visual: Add a vision tower; without one the model is marked text-only (MoE kinds).
        sizes: Sizes other than the default ones.

    Raises:
        UserError: Unknown kind, sizes too small for the tokenizer, an option the kind does not
            have, or ``out`` occupied.
    """
    if kind not in KINDS:
        raise UserError("kind", found=kind, allowed=", ".join(KINDS), do="choose one of these")
    sizes = sizes or TinySizes()
    if kind == DENSE:
        mtp = False
        if echo or visual:
            raise UserError(
                f"kind {DENSE}",
                found="echo" if echo else "visual",
                allowed="no echo and no visual: these belong to the MoE kinds",
                do=f"drop the option, or choose {MOE_BF16} or {MOE_MXFP4}",
            )
    if echo and not mtp:
        raise UserError(
            "echo",
            found="mtp off",
            allowed="echo with the MTP layer, whose drafts it makes acceptable",
            do="leave mtp on, or echo off",
        )
    trained = tokenizer.train()
    if sizes.vocab < trained.num_tokens:
        raise UserError(
            "tiny model size vocab",
            found=str(sizes.vocab),
            allowed=f"at least the tokenizer's {trained.num_tokens}",
            do="raise vocab",
        )
    values = Values(seed)
    if kind == DENSE:
        config = configs.dense(sizes, trained.ids)
        tensors = weights.dense_tensors(sizes, values, trained.speakable)
    else:
        packed = kind == MOE_MXFP4
        config = configs.qwen3_5_moe(sizes, trained.ids, mtp=mtp, visual=visual, mxfp4=packed)
        tensors = weights.moe_tensors(
            sizes,
            values,
            trained.speakable,
            echo=echo,
            mtp=mtp,
            visual=visual,
            packed=packed,
        )
    with checkpoint.whole_folder(out) as folder:
        num_files = checkpoint.write_tensors(folder, tensors, shard_bytes=sizes.shard_bytes)
        checkpoint.write_json(folder / "config.json", config)
        checkpoint.write_json(folder / "generation_config.json", configs.generation(trained.ids))
        tokenizer.write(folder, trained, max_positions=sizes.max_positions)
        if visual:
            checkpoint.write_json(folder / "preprocessor_config.json", configs.image_processor())
            checkpoint.write_json(
                folder / "video_preprocessor_config.json", configs.video_processor()
            )
    return TinyModel(
        path=out,
        kind=kind,
        seed=seed,
        echo=echo,
        mtp=mtp,
        visual=visual,
        sizes=sizes,
        num_tensors=len(tensors),
        num_files=num_files,
        weight_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        num_tokens=trained.num_tokens,
    )


def dequantised_twin(source: Path, out: Path, *, shard_bytes: int = 2 << 20) -> Path:
    """Write the bf16 twin of a Quark MXFP4 checkpoint into ``out`` and return it.

    Every MXFP4 weight becomes the bf16 tensor of exactly the same values (an element has two
    significant bits), stored per expert under the same ``weight`` name; everything else is copied
    as it is. config.json loses its ``quantization_config``.

    Args:
        source: Folder of the MXFP4 checkpoint.
        out: Folder to make; may exist if empty, or if it holds exactly this twin.
        shard_bytes: Size of a file.

    Raises:
        UserError: ``source`` is no Quark MXFP4 checkpoint, a scale is NaN, or ``out`` is occupied.
    """
    config = _quark_config(source)
    del config["quantization_config"]
    stored = checkpoint.read_tensors(source)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        if name.endswith(".weight") and f"{name}_scale" in stored:
            tensors[name] = _dequantised(name, tensor, stored[f"{name}_scale"])
        elif not name.endswith(".weight_scale"):
            tensors[name] = tensor
    with checkpoint.whole_folder(out) as folder:
        checkpoint.write_tensors(folder, tensors, shard_bytes=shard_bytes)
        checkpoint.write_json(folder / "config.json", config)
        for path in sorted(source.iterdir()):
            if path.suffix in (".json", ".jinja") and not (folder / path.name).exists():
                shutil.copyfile(path, folder / path.name)
    return out


def _quark_config(source: Path) -> dict[str, object]:
    path = source / "config.json"
    config: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    quantisation = config.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    if method != "quark":
        raise UserError(
            str(path),
            found=f"quant_method {method}",
            allowed="quark",
            do="give the folder of a Quark MXFP4 checkpoint",
        )
    return config


def _dequantised(name: str, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    import torch

    num_nan = int((scales == mxfp4.SCALE_NAN).sum())
    if num_nan:
        raise UserError(
            name,
            found=f"{num_nan} blocks with scale byte {mxfp4.SCALE_NAN:#x} (NaN)",
            allowed="finite scales",
            do="quantise the checkpoint again",
        )
    values = mxfp4.dequantise(packed.numpy(), scales.numpy())
    return torch.from_numpy(values).to(torch.bfloat16)
