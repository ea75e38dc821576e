"""Greedy tokens from transformers' own torch implementation, as a reference for a server.

The checkpoint is a plain one or a Quark MXFP4 one; MXFP4 weights are dequantised exactly on the
way in. All weights are held in memory, so this is for small models.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_mi300a import torchvision_schemas
from sglang_mi300a.accuracy import stored_tensors
from sglang_mi300a.accuracy.stored_tensors import SCALE, files_by_tensor, no_checkpoint
from sglang_mi300a.errors import UserError

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

DTYPES = ("float32", "bfloat16")

_NOT_IN_TEXT_MODEL = ("mtp.", "model.visual.")
_EXPERT = re.compile(r"(?P<at>.*\.mlp\.experts)\.(?P<expert>\d+)\.(?P<part>\w+_proj)\.weight")


@dataclass(frozen=True)
class Continuation:
    """A greedy continuation.

    Attributes:
        tokens: The tokens, best logit first and lowest id on a tie; the end-of-text token does
            not end it.
        gaps: Best minus second best logit at each token.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


def greedy_tokens(
    model_dir: Path,
    prompts_token_ids: Sequence[Sequence[int]],
    num_tokens: int,
    dtype: str = "float32",
) -> list[list[int]]:
    """Return ``num_tokens`` greedy tokens after each prompt.

    Args:
        model_dir: Checkpoint folder, plain or Quark MXFP4.
        prompts_token_ids: Prompts as token ids, none empty.
        num_tokens: Tokens to generate after each.
        dtype: One of ``DTYPES``. Only float32 makes a token-exact oracle: at bf16 two right
            implementations part at near ties.

    Raises:
        UserError: As :class:`TransformersReference`.
    """
    return [
        list(continuation.tokens)
        for continuation in greedy_continuations(model_dir, prompts_token_ids, num_tokens, dtype)
    ]


def greedy_continuations(
    model_dir: Path,
    prompts_token_ids: Sequence[Sequence[int]],
    num_tokens: int,
    dtype: str = "float32",
) -> list[Continuation]:
    """Return what :func:`greedy_tokens` does, with the logit gap at each token."""
    reference = TransformersReference(model_dir, dtype)
    return [reference.continue_greedily(prompt, num_tokens) for prompt in prompts_token_ids]


class TransformersReference:
    """A text model loaded once, on the CPU.

    Raises:
        UserError: Unknown dtype, no checkpoint there, a scale that the one scale rule refuses, or
            tensors that are not those of the model which config.json names.
    """

    def __init__(self, model_dir: Path, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise UserError("dtype", found=dtype, allowed=", ".join(DTYPES), do="choose one")
        if not (model_dir / "config.json").is_file():
            # transformers takes what is no folder for the name of a model to download.
            raise no_checkpoint(model_dir, "no config.json")
        import torch

        let_transformers_import()
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(model_dir).get_text_config()
        self._torch = torch
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation="eager"
        )
        tensors = stacked_experts(text_tensors(dequantised(read_checkpoint(model_dir))))
        wanted = model.state_dict()
        differing = sorted(
            (wanted.keys() ^ tensors.keys())
            | {
                name
                for name in wanted.keys() & tensors.keys()
                if wanted[name].shape != tensors[name].shape
            }
        )
        if differing:
            raise UserError(
                str(model_dir),
                found=f"{len(differing)} tensors missing, unknown or misshapen, first "
                f"{differing[0]}",
                allowed=f"the tensors of {type(model).__name__}",
                do="give a whole checkpoint",
            )
        model.load_state_dict(tensors)
        self._model = model.eval()

    def continue_greedily(self, prompt: Sequence[int], num_tokens: int) -> Continuation:
        """Return ``num_tokens`` greedy tokens after ``prompt`` with their logit gaps."""
        tokens: list[int] = []
        gaps: list[float] = []
        fed = list(prompt)
        cache: Any = None
        with self._torch.inference_mode():
            for _ in range(num_tokens):
                output = self._model(
                    input_ids=self._torch.tensor([fed]), past_key_values=cache, use_cache=True
                )
                cache = output.past_key_values
                best, second = self._torch.topk(output.logits[0, -1].float(), 2).values.tolist()
                token = int(output.logits[0, -1].argmax())
                tokens.append(token)
                gaps.append(best - second)
                fed = [token]
        return Continuation(tuple(tokens), tuple(gaps))

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the logits after each of ``tokens`` in one pass, float32 ``[tokens, vocab]``."""
        with self._torch.inference_mode():
            output = self._model(input_ids=self._torch.tensor([list(tokens)]), use_cache=False)
        logits: torch.Tensor = output.logits[0].float()
        return logits


def read_checkpoint(model_dir: Path) -> Tensors:
    """Return every tensor of the checkpoint's safetensors files by name.

    Raises:
        UserError: There is no such file.
    """
    from safetensors.torch import load_file

    tensors: Tensors = {}
    for path in sorted(set(files_by_tensor(model_dir).values())):
        tensors.update(load_file(path))
    return tensors


def dequantised(stored: Tensors) -> Tensors:
    """Return the tensors with each MXFP4 ``weight`` as the float32 values it stands for.

    Raises:
        UserError: A scale that the one scale rule refuses.
    """
    tensors: Tensors = {}
    for name, tensor in stored.items():
        if name.endswith(f".weight{SCALE}"):
            continue
        scales = stored.get(name + SCALE)
        tensors[name] = (
            tensor if scales is None else stored_tensors.dequantised(name, tensor, scales)
        )
    return tensors


def text_tensors(tensors: Tensors) -> Tensors:
    """Return the text model's tensors under the names that transformers' text class has."""
    stored = text_names(tensors)
    return {name: tensors[stored_as] for name, stored_as in stored.items()}


def text_names(stored: Iterable[str]) -> dict[str, str]:
    """Return what each tensor of the text model is stored as, by transformers' name of it."""
    return {
        name.replace("model.language_model.", "model.", 1): name
        for name in stored
        if not name.startswith(_NOT_IN_TEXT_MODEL)
    }


def stacked_experts(tensors: Tensors) -> Tensors:
    """Return the tensors with experts stored one by one stacked as transformers 5 holds them.

    ``experts.E.{gate,up,down}_proj.weight`` become ``experts.gate_up_proj`` ``[E, 2 I, H]``, gate
    rows first, and ``experts.down_proj`` ``[E, H, I]``.

    Raises:
        UserError: An expert lacks one of its three matrices.
    """
    import torch

    stacked: Tensors = {}
    experts: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            stacked[name] = tensor
        else:
            experts.setdefault(match["at"], {})[int(match["expert"]), match["part"]] = tensor
    for at, parts in experts.items():
        numbers = sorted({number for number, _ in parts})
        for number in numbers:
            for part in ("gate_proj", "up_proj", "down_proj"):
                if (number, part) not in parts:
                    raise UserError(
                        f"{at}.{number}",
                        found=f"no {part}.weight",
                        allowed="gate_proj, up_proj and down_proj of each expert",
                        do="give a whole checkpoint",
                    )
        gate_up = [[parts[number, part] for part in ("gate_proj", "up_proj")] for number in numbers]
        stacked[f"{at}.gate_up_proj"] = torch.stack([torch.cat(rows) for rows in gate_up])
        stacked[f"{at}.down_proj"] = torch.stack([parts[number, "down_proj"] for number in numbers])
    return stacked


def let_transformers_import() -> None:
    """Declare two operators whose absence keeps torchvision, and so transformers, from importing.

    A torchvision wheel built for CUDA cannot load its operators beside a CPU torch, and its Python
    part does not import without their schemas. No text model calls them.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # transformers does without
    except RuntimeError:
        if not torchvision_schemas.define_missing():
            raise
