"""Reports of trouble and what each became here; the page ``docs/findings.md`` is made from them.

``rows.json`` holds a row a report: ``N`` from a published record of this model on this part, ``P``
from public threads, ``L`` seen while SGLang was read, ``F`` wishes. ``entry`` is one or more
finding ids, or one of :data:`OTHERWISE`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sglang_mi300a.doctor import findings
from sglang_mi300a.doctor.judging import SEVERITIES

OTHERWISE = {
    "serving-time watcher": "shows only while a server runs; nothing can be seen of it before",
    "fixed in 0.5.18": "the supported SGLang does not do this any more",
    "not visible": "doctor does not look for it, for the reason that follows",
}
"""What a row may become other than findings, with its meaning."""

_ROWS = Path(__file__).with_name("rows.json")
_SECTIONS = {
    "N": "From a published record of this model on four MI300A",
    "P": "From public threads",
    "L": "Seen while SGLang was read",
    "F": "Wishes",
}
_SOURCE_OF_N = (
    "Source: `vibesys-playground/qwen3.5-397b-mi300a-sglang-vibesys-20260920` and "
    "`…-bespoke-vibesys-20260920`."
)


@dataclass(frozen=True)
class Row:
    """One report.

    Attributes:
        id: Letter of its section and a number.
        seen: What people saw.
        source: ``owner/repository number`` of a public thread, or "".
        entry: What it became.
    """

    id: str
    seen: str
    source: str
    entry: str

    @property
    def finding_ids(self) -> list[str]:
        """The findings it became; empty if it became something else."""
        is_other = any(self.entry.split(":")[0] == word for word in OTHERWISE)
        return [] if is_other else self.entry.split(", ")

    @property
    def link(self) -> str:
        """Markdown of its source."""
        if not self.source:
            return ""
        repository, number = self.source.split(" ")
        return f"[{self.source}](https://github.com/{repository}/issues/{number})"


def rows() -> list[Row]:
    """Return every report."""
    return [Row(**row) for row in json.loads(_ROWS.read_text(encoding="utf-8"))]


def page() -> str:
    """Return the text of ``docs/findings.md``."""
    reports = rows()
    lines = [
        "# Findings of `sglang-mi300a doctor`",
        "",
        "Generated from the judges themselves. Each is a pure function of a machine's facts and is",
        "tested on two recorded machines that differ in one fact (evidence E0: the records are",
        "composed, and no judge has seen a real MI300A yet).",
        "",
        *(f"- **{name}**: {text}" for name, text in SEVERITIES.items()),
        "",
        "`<names>` stand for real places, such as `<jit-cache>`, and for values that were seen.",
        "What each report of trouble became stands [at the end](#reports).",
    ]
    for title, module in findings.TOPICS.items():
        lines += ["", f"## {title}"]
        for one in findings.JUDGES:
            if vars(module).get(one.id.replace("-", "_")) is one:
                from_reports = [row.id for row in reports if one.id in row.finding_ids]
                lines += [
                    "",
                    f"### {one.id}",
                    "",
                    f"**{one.severity}**: {one.why}.",
                    "",
                    f"Do: {one.cure_in_words}",
                ]
                if from_reports:
                    lines += ["", f"Reports: {', '.join(from_reports)}"]
    lines += ["", "## Reports", ""]
    lines += [f"- *{name}*: {text}" for name, text in OTHERWISE.items()]
    for letter, title in _SECTIONS.items():
        lines += ["", f"### {title}", ""]
        if letter == "N":
            lines += [_SOURCE_OF_N, ""]
        lines += ["| | what was seen | source | became |", "|---|---|---|---|"]
        for row in reports:
            if row.id[0] == letter:
                became = ", ".join(f"[{i}](#{i})" for i in row.finding_ids) or row.entry
                lines.append(f"| {row.id} | {row.seen} | {row.link} | {became} |")
    return "\n".join(lines) + "\n"
