"""Logits from transformers' own model for a checkpoint of any size, read once, layer by layer.

The whole model in float32 would be 1.6 TB. Here its classes are built without memory; a layer's
weights come from the checkpoint as it runs and go as it ends, experts one by one as tokens are
routed to them. Embeddings and logits are made from the rows that are needed. What is computed is
what :class:`~sglang_mi300a.accuracy.transformers_reference.TransformersReference` computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_mi300a.accuracy.stored_tensors import StoredTensors, no_checkpoint
from sglang_mi300a.accuracy.transformers_reference import let_transformers_import, text_names
from sglang_mi300a.errors import UserError

if TYPE_CHECKING:
    import torch

_EXPERTS = "mlp.experts"
_HEAD_ROWS = 8192
"""Rows of the head that are in memory at once."""


class StreamedReference:
    """A text model whose weights stay on disk.

    Args:
        model_dir: Checkpoint, plain or Quark MXFP4.
        threads: Experts that are read and dequantised ahead.

    Attributes:
        num_layers: Layers that a pass reads.

    Raises:
        UserError: There is no checkpoint, or tensors of it are missing.
    """

    def __init__(self, model_dir: Path, threads: int = 4) -> None:
        if not (model_dir / "config.json").is_file():
            raise no_checkpoint(model_dir, "no config.json")
        import torch

        let_transformers_import()
        from transformers import AutoConfig, AutoModelForCausalLM

        self._torch = torch
        self._threads = threads
        config = AutoConfig.from_pretrained(model_dir).get_text_config()
        with torch.device("meta"):
            self._model = AutoModelForCausalLM.from_config(
                config,
                dtype=torch.float32,
                attn_implementation="eager",
                experts_implementation="eager",
            ).eval()
        body = self._model.model
        body.rotary_emb = type(body.rotary_emb)(config)  # computed, not stored
        self.num_layers = len(body.layers)
        self._stored = StoredTensors(model_dir)
        self._name = text_names(self._stored.names())
        self._head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self._check_all_there(model_dir, config.num_experts)

    def logits(
        self,
        rows: Sequence[Sequence[int]],
        positions: Sequence[int],
        advance: Callable[[int], None] = lambda layers: None,
    ) -> torch.Tensor:
        """Return logits of prompts, float32 ``[rows, positions, vocabulary]``, in one pass.

        Args:
            rows: Token ids, equally many in each row.
            positions: After which of a row's tokens.
            advance: Told of each layer that has run.

        Raises:
            UserError: A tensor has another shape than the model, or a scale is refused.
        """
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"rows of {sorted({len(row) for row in rows})} tokens, not all equal")
        torch, body = self._torch, self._model.model
        handles = []
        with torch.inference_mode(), ThreadPoolExecutor(self._threads, "experts") as pool:
            for number, layer in enumerate(body.layers):
                lending = _Lending(self, f"model.layers.{number}.", pool, advance)
                handles += [
                    layer.register_forward_pre_hook(lending.fill),
                    layer.register_forward_hook(lending.empty),
                ]
            body.norm.load_state_dict({"weight": self._tensor("model.norm.weight")}, assign=True)
            embedded = self._embedded(rows)
            try:
                last = body(inputs_embeds=embedded, use_cache=False).last_hidden_state
            finally:
                for handle in handles:
                    handle.remove()
            found = self._of_head(last[:, list(positions)])
        self.forget()
        return found

    def _check_all_there(self, model_dir: Path, num_experts: int) -> None:
        wanted = []
        for name in self._model.state_dict():
            at, _, part = name.rpartition(".")
            if not at.endswith(_EXPERTS) or name in self._name:
                wanted.append(name)
                continue
            split = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            wanted += [f"{at}.{e}.{one}.weight" for e in range(num_experts) for one in split]
        if self._head != "lm_head":
            wanted.remove("lm_head.weight")
        missing = [name for name in wanted if name not in self._name]
        if missing:
            raise UserError(
                str(model_dir),
                found=f"{len(missing)} tensors missing, first {missing[0]}",
                allowed=f"the tensors of {type(self._model).__name__}",
                do="give a whole checkpoint",
            )

    def _tensor(self, name: str, first: int = 0, stop: int | None = None) -> torch.Tensor:
        return self._stored.rows(self._name[name], first, stop)

    def _embedded(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        import torch

        name = "model.embed_tokens.weight"
        known = {
            token: self._tensor(name, token, token + 1)[0]
            for token in sorted({token for row in rows for token in row})
        }
        return torch.stack([torch.stack([known[token] for token in row]) for row in rows])

    def _of_head(self, hidden: torch.Tensor) -> torch.Tensor:
        vocabulary = self._model.config.vocab_size
        parts = [
            self._torch.nn.functional.linear(
                hidden,
                self._tensor(f"{self._head}.weight", at, min(at + _HEAD_ROWS, vocabulary)),
            )
            for at in range(0, vocabulary, _HEAD_ROWS)
        ]
        logits: torch.Tensor = self._torch.cat(parts, dim=-1)
        return logits

    def forget(self) -> None:
        """Take what was read of the checkpoint out of the page cache."""
        self._stored.forget()

    def layer_tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Return a tensor of a layer.

        Raises:
            UserError: It has another shape than the model's.
        """
        return _with_shape(self._tensor(name), shape, name)

    def experts(self, name: str, like: torch.Tensor, pool: ThreadPoolExecutor) -> _Ahead:
        """Return one projection of a layer's experts, read as they are asked for.

        Args:
            name: Of the stacked tensor, as transformers has it.
            like: Its shape.
            pool: What reads ahead.
        """
        at, _, part = name.rpartition(".")
        split = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)

        def read(expert: int) -> torch.Tensor:
            if name in self._name:
                found = self._tensor(name, expert, expert + 1)[0]
            else:
                rows = [self._tensor(f"{at}.{expert}.{one}.weight") for one in split]
                found = rows[0] if len(rows) == 1 else self._torch.cat(rows)
            return _with_shape(found, like.shape[1:], f"{at}.{expert}, {part}")

        return _Ahead(read, len(like), self._threads, pool)


class _Lending:
    """Gives one layer its weights as it runs, and takes them away."""

    def __init__(
        self,
        reference: StreamedReference,
        prefix: str,
        pool: ThreadPoolExecutor,
        advance: Callable[[int], None],
    ) -> None:
        self._reference = reference
        self._prefix = prefix
        self._pool = pool
        self._advance = advance
        self._experts: list[tuple[Any, str, torch.Tensor]] = []

    def fill(self, layer: Any, *_: Any) -> None:
        """Fill a layer that is about to run."""
        tensors = {}
        for name, like in layer.state_dict().items():
            at, _, part = name.rpartition(".")
            if at != _EXPERTS:
                tensors[name] = self._reference.layer_tensor(self._prefix + name, like.shape)
                continue
            experts = layer.get_submodule(at)
            self._experts.append((experts, part, like))
            delattr(experts, part)
            setattr(experts, part, self._reference.experts(self._prefix + name, like, self._pool))
        layer.load_state_dict(tensors, assign=True)  # all: the experts are no parameters now

    def empty(self, layer: Any, *_: Any) -> None:
        """Empty a layer that has run."""
        from torch.nn import Parameter

        for experts, part, like in self._experts:
            delattr(experts, part)
            experts.register_parameter(part, Parameter(like, requires_grad=False))
        layer.to("meta")
        self._reference.forget()
        self._advance(1)


class _Ahead:
    """One projection of a layer's experts, indexed as transformers' loop over experts does.

    Experts come in ascending order: those after the one that is asked for are read meanwhile.
    """

    def __init__(
        self,
        read: Callable[[int], torch.Tensor],
        count: int,
        ahead: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._read = read
        self._count = count
        self._ahead = ahead
        self._pool = pool
        self._coming: dict[int, Future[torch.Tensor]] = {}

    def __getitem__(self, expert: Any) -> torch.Tensor:
        first = int(expert)
        for number in [one for one in self._coming if one < first]:
            self._coming.pop(number).cancel()
        for number in range(first, min(first + self._ahead + 1, self._count)):
            if number not in self._coming:
                self._coming[number] = self._pool.submit(self._read, number)
        return self._coming.pop(first).result()


def _with_shape(tensor: torch.Tensor, shape: Sequence[int], name: str) -> torch.Tensor:
    if tuple(tensor.shape) != tuple(shape):
        raise UserError(
            name,
            found=f"shape {list(tensor.shape)}",
            allowed=f"{list(shape)}, as config.json says",
            do="give the config.json that belongs to these weights",
        )
    return tensor
