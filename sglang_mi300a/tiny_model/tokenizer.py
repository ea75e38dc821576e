"""A small byte-level BPE tokenizer with Qwen's special tokens, trained on text of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENDOFTEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
THINK = "<think>"
END_THINK = "</think>"

SPECIAL_TOKENS = (ENDOFTEXT, IM_START, IM_END, VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)
THINK_TOKENS = (THINK, END_THINK)
"""Added tokens that are ordinary text to a client, as in Qwen3.5."""

NUM_TRAINED_TOKENS = 1200
"""256 bytes, the merges, enough for every word below to be one token, and no special token."""

_SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How text is cut before merging: words with their leading space, single digits, punctuation,
line ends, other blanks. No merge crosses such a cut."""

_WORDS = """
able about above across act add after again age air all also always and animal answer any apple
area arm around ask autumn away back bag ball band bank base bear beat bed before begin behind
bell below best better big bird black blue board boat body book both bottom box boy branch bread
bridge bright bring brother brown build bus busy buy call calm camp can car care carry case cat
catch center chair change child circle city class clean clear climb clock close cloud coat cold
color come cook cool copy corn corner count country cover cross cup cut dance dark day deep desk
dinner direct dog door down draw dream dress drink drive dry duck during each early earth east
easy eat edge egg eight empty end enough even evening every eye face fall family far farm fast
father feel field fill find fine finger fire first fish five floor flower fly follow food foot
forest forget four fresh friend from front fruit full game garden gate gentle gift girl give
glass go gold good grass gray great green ground grow guess hair half hall hand happy hard hat
head hear heart heavy help here high hill hold home hope horse hot hour house how hundred ice
idea iron island jacket job join jump keep kitchen know lake lamp land large last late laugh
leaf learn leave left letter light line lion listen little live long look lost loud love low
machine make map mark market matter meadow mean meet milk mind minute moment money month moon
more morning mother mountain mouth move much music name near never new next night nine noise
north note number ocean often oil old once one only open orange other over page paint paper part
path pencil people picture piece place plain plan plant play please point pond poor pull push
quick quiet rain reach read ready red rest rice rich ride right ring river road rock roof room
root rope round run sail salt same sand save say school sea season second see seed seven shade
shape sharp sheep ship shirt shoe shop short show side silver simple sing sister sit six sky
sleep slow small smell smile smoke snow soft song soon sound south speak spring stand star start
station stay step stone stop store storm story street strong sugar summer sun sweet swim table
tail take tall taste tea teach tell ten test thank thick thin thing think thousand three time
tired today together top touch town train travel tree true try turn two under until up use valley
very village visit voice wait walk wall warm wash watch water wave way wear weather week west
wheat wheel when where white wide wild wind window winter wish with wolf wonder wood word work
world write yard year yellow yes young zero
""".split()

_SENTENCES = (
    "The answer is short, but the question was long.",
    "Please count to ten: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    "You are a helpful assistant.",
    "What is the name of the river that crosses the city?",
    "A server answers many people at the same time, and it must not mix them up.",
    "If you know the way to the station, tell me; if you do not, say so.",
    "Names: Zürich, São Paulo, Kraków, Łódź, Αθήνα, Київ, 東京, 서울.",
    "user system assistant tool",
    "def add(a, b):\n    return a + b\n",
    '{"key": [1, 2, 3], "value": null}',
)

CHAT_TEMPLATE = """\
{%- macro shown(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part.type == "text" -%}
                {{- part.text -}}
            {%- elif part.type in ("image", "image_url") -%}
                {{- "<|vision_start|><|image_pad|><|vision_end|>" -}}
            {%- elif part.type in ("video", "video_url") -%}
                {{- "<|vision_start|><|video_pad|><|vision_end|>" -}}
            {%- else -%}
                {{- raise_exception("a message part must be text, image or video") -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set asked = namespace(last=-1) -%}
{%- for message in messages -%}
    {%- if message.role == "user" -%}
        {%- set asked.last = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set text = shown(message.content) | trim -%}
    {%- if message.role not in ("system", "user", "assistant", "tool") -%}
        {{- raise_exception("unknown role: " ~ message.role) -}}
    {%- endif -%}
    {%- if message.role == "system" and not loop.first -%}
        {{- raise_exception("the system message must come first") -}}
    {%- endif -%}
    {{- "<|im_start|>" ~ message.role ~ "\\n" -}}
    {%- if message.role == "assistant" -%}
        {%- set thought = message.reasoning_content | default("", true) -%}
        {%- if "</think>" in text -%}
            {%- if not thought -%}
                {%- set thought = text.split("</think>")[0].split("<think>")[-1] -%}
            {%- endif -%}
            {%- set text = text.split("</think>")[-1] | trim -%}
        {%- endif -%}
        {%- if loop.index0 > asked.last -%}
            {{- "<think>\\n" ~ (thought | trim) ~ "\\n</think>\\n\\n" -}}
        {%- endif -%}
    {%- endif -%}
    {{- text ~ "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n<think>\\n" -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- "\\n</think>\\n\\n" -}}
    {%- endif -%}
{%- endif -%}
"""
"""Turns in ``<|im_start|>role ... <|im_end|>``; the thinking block of an assistant message is kept
only after the last user message. Generation starts inside a thinking block, or, with
``enable_thinking=false``, after an empty one."""


@dataclass(frozen=True)
class Trained:
    """What the weights and config files need to know of the tokenizer.

    Attributes:
        json_text: Content of tokenizer.json.
        ids: Id of each special and thinking token.
        num_tokens: Tokens in all.
        speakable: Ids the model may say: words with their leading space. Any sequence of them,
            decoded and tokenised again, gives the same ids, so a reply sent back as history hits
            the prefix cache in full.
    """

    json_text: str
    ids: dict[str, int]
    num_tokens: int
    speakable: tuple[int, ...]


def train() -> Trained:
    """Return the tokenizer; the same at every call with the same ``tokenizers`` version."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TRAINED_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer=trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in THINK_TOKENS])

    spelled = [tokenizer.encode(f" {word}").ids for word in _WORDS]
    return Trained(
        json_text=tokenizer.to_str(pretty=True),
        ids={text: tokenizer.token_to_id(text) for text in (*SPECIAL_TOKENS, *THINK_TOKENS)},
        num_tokens=tokenizer.get_vocab_size(),
        speakable=tuple(sorted(ids[0] for ids in spelled if len(ids) == 1)),
    )


def _lines() -> Iterator[str]:
    yield from _SENTENCES
    # Each word once in each place of a sentence of five, after a space.
    for start in range(len(_WORDS)):
        picked = [_WORDS[(start + 37 * place) % len(_WORDS)] for place in range(5)]
        yield f"The {' '.join(picked)}."


def write(folder: Path, trained: Trained, *, max_positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into ``folder``."""
    (folder / "tokenizer.json").write_text(trained.json_text + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer_config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(token_id): {
                "content": text,
                "lstrip": False,
                "normalized": text in THINK_TOKENS,
                "rstrip": False,
                "single_word": False,
                "special": text in SPECIAL_TOKENS,
            }
            for text, token_id in trained.ids.items()
        },
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "model_max_length": max_positions,
        "pad_token": ENDOFTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    text = json.dumps(tokenizer_config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
