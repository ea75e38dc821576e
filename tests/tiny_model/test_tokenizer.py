"""The tokenizer and the chat template of a tiny model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sglang_mi300a.tiny_model import MOE_MXFP4, tokenizer
from sglang_mi300a.tiny_model.checkpoint import read_tensors

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
ASK = {"role": "user", "content": "Name a river."}
REPLY = {"role": "assistant", "content": "<think>\nwhich one\n</think>\n\nThe Rhine."}
ASK_MORE = {"role": "user", "content": "And a city?"}


@pytest.fixture(scope="module")
def loaded(models: dict[str, Path]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(models[MOE_MXFP4])


@pytest.fixture(scope="module")
def trained() -> tokenizer.Trained:
    return tokenizer.train()


@pytest.mark.parametrize(
    "text",
    [
        "The answer is short.",
        "  blanks,\ttabs\r\n\nand lines \n ",
        "Zürich 東京 서울 \U0001f30d \u00e9 e\u0301",
        "x = {'a': [1, 22, 333]}\x00\x7f",
        "<|im_start|>user\nhi<|im_end|>\n<think>\n\n</think>\n\nyes",
        "",
    ],
)
def test_text_comes_back_as_it_was(loaded: Any, text: str) -> None:
    assert loaded.decode(loaded(text).input_ids) == text


def test_special_and_thinking_tokens_are_one_token_each(
    loaded: Any, trained: tokenizer.Trained
) -> None:
    for text, token_id in trained.ids.items():
        assert loaded(f"a{text} b").input_ids.count(token_id) == 1
        hidden = text not in loaded.decode([token_id], skip_special_tokens=True)
        assert hidden == (text in tokenizer.SPECIAL_TOKENS)
    assert loaded.eos_token == "<|im_end|>"
    assert loaded.pad_token == "<|endoftext|>"
    assert len(loaded) == trained.num_tokens


def test_whatever_the_model_says_is_tokenised_to_the_same_ids_again(
    loaded: Any, trained: tokenizer.Trained
) -> None:
    assert len(trained.speakable) > 400
    draw = random.Random(0)
    for _ in range(20):
        said = draw.choices(trained.speakable, k=50)
        assert loaded(loaded.decode(said)).input_ids == said


def test_the_model_can_say_these_tokens_and_no_others(
    models: dict[str, Path], trained: tokenizer.Trained
) -> None:
    head = read_tensors(models[MOE_MXFP4])["lm_head.weight"]
    rows = head.float().abs().amax(dim=1).nonzero().flatten().tolist()
    assert rows == list(trained.speakable)


def test_turns_are_rendered_one_after_the_other(loaded: Any) -> None:
    text = loaded.apply_chat_template(
        [SYSTEM, ASK, REPLY, ASK_MORE], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nName a river.<|im_end|>\n"
        "<|im_start|>assistant\nThe Rhine.<|im_end|>\n"
        "<|im_start|>user\nAnd a city?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_thinking_can_be_switched_off(loaded: Any) -> None:
    text = loaded.apply_chat_template(
        [ASK], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_the_thinking_of_the_last_reply_is_kept(loaded: Any) -> None:
    text = loaded.apply_chat_template([ASK, REPLY], tokenize=False)
    assert text.endswith(
        "<|im_start|>assistant\n<think>\nwhich one\n</think>\n\nThe Rhine.<|im_end|>\n"
    )
    apart = {"role": "assistant", "content": "The Rhine.", "reasoning_content": "which one"}
    assert loaded.apply_chat_template([ASK, apart], tokenize=False) == text


def test_a_longer_history_begins_with_the_shorter_one(loaded: Any) -> None:
    short = loaded.apply_chat_template([SYSTEM, ASK], tokenize=False)
    long = loaded.apply_chat_template([SYSTEM, ASK, REPLY, ASK_MORE], tokenize=False)
    assert long.startswith(short)


def test_parts_of_a_message_are_joined_and_images_marked(loaded: Any) -> None:
    parts = [
        {"type": "text", "text": "See "},
        {"type": "image"},
        {"type": "text", "text": "?"},
    ]
    text = loaded.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    assert text == (
        "<|im_start|>user\nSee <|vision_start|><|image_pad|><|vision_end|>?<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "narrator", "content": "x"}], "unknown role: narrator"),
        ([ASK, SYSTEM], "system message must come first"),
        ([{"role": "user", "content": [{"type": "sound"}]}], "must be text, image or video"),
    ],
)
def test_a_conversation_that_cannot_be_rendered_is_refused(
    loaded: Any, messages: list[dict[str, Any]], message: str
) -> None:
    from jinja2 import TemplateError

    with pytest.raises(TemplateError, match=message):
        loaded.apply_chat_template(messages, tokenize=False)
