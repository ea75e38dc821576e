"""Compute what a right server says after a few texts, so that every start can compare.

    sglang-mi300a golden --model HF_DIR --out ARTIFACT     once, after shard-weights; no GPU
    sglang-mi300a golden --show ARTIFACT                   what is recorded there

The checkpoint's weights run through transformers' own model on the CPU, in float32, a layer at a
time: nothing of SGLang, of this package's kernels or of the sharding takes part. It reads the whole
text model once and needs a few GiB of memory. A server that finds golden.json beside its weights
asks itself the same texts before it listens, says how far it is off, and stops where no rounding
explains it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_mi300a import artifact_manifest, golden, served_model
from sglang_mi300a.errors import EXIT_BAD_INPUT, EXIT_OK, UserError
from sglang_mi300a.golden import Golden, Row
from sglang_mi300a.supported import installed_version

if TYPE_CHECKING:
    import torch

TOP = 8
"""Likeliest tokens of each prompt that are recorded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="Hugging Face checkpoint to compute with")
    add(
        "--out", type=Path, metavar="DIR",
        help="where golden.json goes: the artifact made of it (default: --model itself)",
    )  # fmt: skip
    add("--show", type=Path, metavar="DIR", help="print what is recorded there, and stop")
    add(
        "--texts", type=Path, metavar="FILE",
        help="texts of your own, one a line (default: eight that are shipped)",
    )  # fmt: skip
    add("--threads", type=int, default=4, metavar="N", help="experts read ahead (%(default)s)")
    add("--quiet", action="store_true", help="no progress bar")
    add("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Compute and write, or show."""
    if args.show is not None:
        return _show(args.show, as_json=args.json)
    if args.model is None:
        raise UserError(
            "--model",
            found="none given",
            allowed="the checkpoint to compute with, or --show DIR",
            do="see sglang-mi300a golden --help",
        )
    out = args.out or args.model
    made = make(
        args.model,
        out,
        _own_texts(args.texts) if args.texts else None,
        threads=args.threads,
        progress=False if args.quiet or args.json else None,
    )
    path = golden.write(out, made)
    if args.json:
        print(json.dumps(_as_data(made, path)))
    else:
        print("\n".join(_in_words(made, path)))
    return EXIT_OK


def make(
    model: Path,
    out: Path,
    texts: Sequence[str] | None = None,
    *,
    threads: int = 4,
    progress: bool | None = None,
) -> Golden:
    """Return golden values of a checkpoint.

    Args:
        model: The checkpoint.
        out: The artifact made of it, or the checkpoint itself.
        texts: Instead of the shipped ones.
        threads: Experts that are read ahead.
        progress: Whether to show a bar; default where stderr is a terminal.

    Raises:
        UserError: No checkpoint, an artifact of another one, or a text that is too short.
    """
    from sglang_mi300a.accuracy import golden_texts
    from sglang_mi300a.accuracy.streamed_reference import StreamedReference
    from sglang_mi300a.weights import checkpoint
    from sglang_mi300a.weights.progress_bar import ProgressBar

    if threads < 1:
        raise UserError(
            "--threads", found=str(threads), allowed="1 or more", do="leave the flag out"
        )
    golden.check_writable(out)
    if served_model.read(model).is_artifact:
        raise UserError(
            f"--model {model}",
            found="an artifact of shard-weights",
            allowed="the checkpoint that it was made of",
            do=f"pass --model HF_DIR --out {model}",
        )
    files = checkpoint.read(model).files
    source = golden.source_checksum(files)
    if artifact_manifest.is_artifact(out):
        _check_same(source, out)
    rows = _token_rows(
        model,
        texts or golden_texts.TEXTS,
        golden_texts.PROMPT_TOKENS + golden_texts.NEXT_TOKENS,
    )
    reference = StreamedReference(model, threads)
    first = golden_texts.PROMPT_TOKENS - 1
    positions = range(first, first + golden_texts.NEXT_TOKENS)
    with ProgressBar("golden logits", reference.num_layers, wanted=progress, unit=" layers") as bar:
        logits = reference.logits(rows, positions, bar.advance)
    if not bool(logits.isfinite().all()):
        raise UserError(
            str(model),
            found="logits that are no numbers",
            allowed="a checkpoint of finite weights",
            do="compare its files with where they came from; one is damaged",
        )
    return Golden(
        tool_version=installed_version("sglang-mi300a") or "",
        reference=f"transformers {importlib.metadata.version('transformers')}, float32, on the CPU",
        source_xxh3_128=source,
        rows=tuple(
            _row(tokens[: first + 1], tokens[first + 1 :], of_row)
            for tokens, of_row in zip(rows, logits, strict=True)
        ),
    )


def _check_same(source: str, out: Path) -> None:
    made_of = golden.source_checksum(artifact_manifest.read(out).source_files)
    if made_of != source:
        raise UserError(
            f"--out {out}",
            found=f"an artifact of checkpoint {made_of[:12]}…",
            allowed=f"one of {source[:12]}…, which --model is",
            do="name the checkpoint that it was made of",
        )


def _token_rows(model: Path, texts: Sequence[str], length: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise _no_tokenizer(model, str(error).partition("\n")[0]) from error
    rows = []
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if not tokens:  # transformers makes an empty tokenizer where files are missing
            raise _no_tokenizer(model, "it gives no token for a text")
        if len(tokens) < length:
            raise UserError(
                f"text {text[:40]!r}…",
                found=f"{len(tokens)} tokens",
                allowed=f"{length} or more",
                do="make it longer",
            )
        rows.append([int(token) for token in tokens[:length]])
    return rows


def _no_tokenizer(model: Path, why: str) -> UserError:
    return UserError(
        str(model),
        found=f"no tokenizer that transformers can read ({why})",
        allowed="the checkpoint with its tokenizer",
        do="fetch tokenizer.json and tokenizer_config.json, too",
    )


def _row(prompt: Sequence[int], going_on: Sequence[int], logits: torch.Tensor) -> Row:
    """Return one text's record; ``logits`` [positions, vocabulary] are after its prompt's end."""
    import torch

    logprobs = torch.log_softmax(logits.double(), dim=-1)
    best = logprobs.topk(max(TOP, 2), dim=-1)
    # The pass is over the text as it is: it tells the greedy continuation for as long as the text
    # itself goes on with the best token.
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    chosen = best.indices[:, 0].tolist()
    agreeing = next((at for at, one in enumerate(going_on) if chosen[at] != one), len(going_on))
    # One more is known: the token chosen where the text first goes another way.
    known = min(agreeing + 1, len(going_on))
    return Row(
        token_ids=tuple(prompt),
        top_ids=tuple(best.indices[0, :TOP].tolist()),
        top_logprobs=tuple(min(value, 0.0) for value in best.values[0, :TOP].tolist()),
        next_ids=tuple(chosen[:known]),
        gaps=tuple(gaps[:known]),
    )


def _own_texts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--texts {path}",
            found=f"not readable ({error})",
            allowed="a UTF-8 text, one text a line",
            do="correct the path",
        ) from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise UserError(
            f"--texts {path}", found="no text", allowed="one or more lines", do="write some"
        )
    return texts


# -- saying ----------------------------------------------------------------------------------------


def _show(directory: Path, *, as_json: bool) -> int:
    found = golden.read(directory)
    if found is None:
        print(f"{directory}: no {golden.NAME}; make it with `sglang-mi300a golden --model HF_DIR`")
        return EXIT_BAD_INPUT
    path = directory / golden.NAME
    if as_json:
        print(json.dumps(_as_data(found, path)))
    else:
        print("\n".join(_in_words(found, path)))
    return EXIT_OK


def _in_words(found: Golden, path: Path) -> list[str]:
    sure = sum(row.num_sure() for row in found.rows)
    return [
        f"{path}: {len(found.rows)} prompts by {found.reference}, of checkpoint "
        f"{found.source_xxh3_128[:12]}…; {sure} tokens that leave no doubt",
        "a server started on this directory compares itself before it listens",
    ]


def _as_data(found: Golden, path: Path) -> dict[str, object]:
    return {
        "path": str(path),
        "reference": found.reference,
        "source_xxh3_128": found.source_xxh3_128,
        "num_prompts": len(found.rows),
        "num_sure_tokens": sum(row.num_sure() for row in found.rows),
    }
