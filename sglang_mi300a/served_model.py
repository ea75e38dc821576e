"""What the package must know of a model before anything starts, read from its directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_mi300a import artifact_manifest
from sglang_mi300a.errors import UserError

ARCHITECTURES = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM")
SHIPPED_CONFIG = Path(__file__).with_name("served_models") / "qwen3.5-397b-a17b-mxfp4"
"""Folder with the config.json of the model that this package is for: its dimensions, no weights."""
QUANTISATION = "Quark MXFP4 (quant_method quark, fp4 weights, one E8M0 scale per group of 32)"


@dataclass(frozen=True)
class ServedModel:
    """Facts of one model directory.

    Attributes:
        path: The directory.
        config: Its ``config.json``.
        text: The text model's part of it.
        is_artifact: Whether ``shard-weights`` made the directory.
        artifact_tp: Tensor-parallel size of the artifact, or None.
        artifact_ep: Expert-parallel size of the artifact, or None.
        artifact_layout: Layout of the artifact's experts, or None.
        has_draft: Whether an MTP layer is there to draft with.
        text_only: Whether it is served without its visual tower.
    """

    path: Path
    config: dict[str, Any]
    text: dict[str, Any]
    is_artifact: bool
    artifact_tp: int | None
    artifact_ep: int | None
    artifact_layout: str | None
    has_draft: bool
    text_only: bool


def is_ours(config: dict[str, Any]) -> bool:
    """Return whether a ``config.json`` describes a Quark MXFP4 Qwen3.5-MoE."""
    architectures = config.get("architectures") or []
    return any(name in ARCHITECTURES for name in architectures) and _is_quark_mxfp4(config)


def read(path: Path) -> ServedModel:
    """Return the facts of a model directory that this package can serve.

    Raises:
        UserError: No such directory, no readable ``config.json``, or another model.
    """
    config = read_config(path)
    architectures = config.get("architectures") or []
    if not any(name in ARCHITECTURES for name in architectures):
        raise UserError(
            f"{path}/config.json",
            found=f"architectures {architectures}",
            allowed=" or ".join(ARCHITECTURES),
            do="serve other models without --mi300a",
        )
    if not _is_quark_mxfp4(config):
        quantisation = config.get("quantization_config")
        raise UserError(
            f"{path}/config.json",
            found=f"quantization_config {_shortened(quantisation)}",
            allowed=QUANTISATION,
            do="take a Quark MXFP4 checkpoint such as amd/Qwen3.5-397B-A17B-MXFP4",
        )
    text = config.get("text_config", config)
    artifact = artifact_manifest.read(path) if artifact_manifest.is_artifact(path) else None
    mtp_layers = text.get("mtp_num_hidden_layers", 0)
    return ServedModel(
        path=path,
        config=config,
        text=text,
        is_artifact=artifact is not None,
        artifact_tp=artifact.tp if artifact else None,
        artifact_ep=artifact.ep if artifact else None,
        artifact_layout=artifact.layout if artifact else None,
        has_draft=bool(artifact.has_draft if artifact else mtp_layers),
        text_only=bool(config.get("language_model_only", False)),
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return ``config.json`` of a model directory.

    Raises:
        UserError: No such directory, or no readable ``config.json`` in it.
    """
    if not path.is_dir():
        raise UserError(
            str(path),
            found="no such directory",
            allowed="a local Hugging Face checkpoint or an artifact of shard-weights",
            do="download the model first, or correct the path",
        )
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            str(file),
            found=f"not readable ({error.strerror})",
            allowed="a model directory with a config.json",
            do="give the directory that holds config.json",
        ) from error
    except ValueError as error:
        raise UserError(
            str(file),
            found=f"not JSON ({error})",
            allowed="a model's config.json",
            do="fetch the file again",
        ) from error
    if not isinstance(config, dict):
        raise UserError(
            str(file),
            found="JSON but no object",
            allowed="a model's config.json",
            do="fetch it again",
        )
    return config


def check_parallel(model: ServedModel, tp: int, ep: int) -> None:
    """Check that the model splits over ``tp`` ranks, and that an artifact was made for them.

    Raises:
        UserError: It does not, or the artifact is for other sizes.
    """
    if model.artifact_tp is not None and (model.artifact_tp, model.artifact_ep) != (tp, ep):
        raise UserError(
            str(model.path),
            found=f"an artifact for TP {model.artifact_tp}, EP {model.artifact_ep}",
            allowed=f"TP {tp}, EP {ep} as asked",
            do=f"pass --tp-size {model.artifact_tp} --ep-size {model.artifact_ep}, or run "
            f"`sglang-mi300a shard-weights --tp {tp} --ep {ep}`",
        )
    sizes = {
        "num_attention_heads": (model.text.get("num_attention_heads", 0), tp),
        "linear_num_key_heads": (model.text.get("linear_num_key_heads", 0), tp),
        "linear_num_value_heads": (model.text.get("linear_num_value_heads", 0), tp),
        "num_experts": (model.text.get("num_experts", 0), ep),
        "moe_intermediate_size": (model.text.get("moe_intermediate_size", 0), 32 * tp // ep),
        "shared_expert_intermediate_size": (
            model.text.get("shared_expert_intermediate_size", 0),
            tp,
        ),
    }
    if tp < 1 or ep < 1 or tp % ep:
        raise UserError(
            "--tp-size, --ep-size",
            found=f"TP {tp}, EP {ep}",
            allowed="positive sizes, EP a divisor of TP",
            do="choose for instance TP 4, EP 1",
        )
    bad = [f"{name} {size} / {parts}" for name, (size, parts) in sizes.items() if size % parts]
    if bad:
        fitting = [
            n for n in (1, 2, 4, 8) if all(s % (p * n // tp or 1) == 0 for s, p in sizes.values())
        ]
        raise UserError(
            f"--tp-size {tp}",
            found=f"sizes that do not divide: {', '.join(bad)}",
            allowed=f"TP {', '.join(map(str, fitting))} for this model",
            do=f"pass --tp-size {fitting[-1] if fitting else 1}",
        )


def _is_quark_mxfp4(config: dict[str, Any]) -> bool:
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, dict) or quantisation.get("quant_method") != "quark":
        return False
    weight = (quantisation.get("global_quant_config") or {}).get("weight") or {}
    if isinstance(weight, list):
        weight = weight[0] if len(weight) == 1 else {}
    return (
        weight.get("dtype") in ("fp4", "mxfp4")
        and weight.get("group_size") == 32
        and weight.get("qscheme") == "per_group"
    )


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
