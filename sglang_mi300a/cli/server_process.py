"""Start a server as a user would, talk to it over HTTP, stop it: for the demo and the tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from sglang_mi300a import boot_report, settings

POLL_S = 0.5

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class ServerDied(Exception):
    """The server process ended, or did not become ready in time.

    Attributes:
        exit_code: Its exit code, or None if it was still running and was stopped.
        log: Everything it printed.
    """

    def __init__(self, exit_code: int | None, log: str) -> None:
        self.exit_code = exit_code
        self.log = log
        super().__init__(f"server ended with {exit_code}; it last said:\n{log[-3000:]}")


@dataclass(frozen=True)
class Completion:
    """What ``/generate`` answered.

    Attributes:
        tokens: Generated token ids.
        cached_tokens: Prompt tokens taken from the prefix cache.
        accepted_drafts: Drafted tokens that were accepted (0 without a draft model).
        decode_passes: Passes of the target after the prompt: verify passes where it drafts.
    """

    tokens: list[int]
    cached_tokens: int
    accepted_drafts: int
    decode_passes: int


@dataclass
class Server:
    """One server process, started by ``with`` and ended by its end.

    Attributes:
        command: Program and arguments; host and port are added.
        environment: Variables to add.
        ready_within_s: How long it may take until ``/health`` says 200.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_within_s: float = 420.0
    port: int = 0
    run_dir: Path = field(default_factory=Path)
    boot_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Server:
        self._scratch = tempfile.TemporaryDirectory(prefix="sglang-mi300a-server-")
        self.run_dir = Path(self._scratch.name) / "run"
        self.port = free_port()
        began = time.monotonic()
        try:
            with self._log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    [*self.command, "--host", "127.0.0.1", "--port", str(self.port)],
                    env=settings.child_environment(
                        {**self.environment, settings.RUN_DIR: str(self.run_dir)}
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        self.boot_s = time.monotonic() - began
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def _log_path(self) -> Path:
        assert self._scratch is not None
        return Path(self._scratch.name) / "log"

    @property
    def log(self) -> str:
        """What the server has printed so far."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def hooks(self) -> dict[str, dict[str, Any]]:
        """State of every seam over all ranks, as the ranks reported it."""
        return boot_report.summary(boot_report.read_all(self.run_dir))

    def _wait_until_ready(self) -> None:
        import requests

        assert self._process is not None
        deadline = time.monotonic() + self.ready_within_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerDied(self._process.returncode, self.log)
            try:
                if requests.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except requests.RequestException:
                pass  # not listening yet
            time.sleep(POLL_S)
        raise ServerDied(None, self.log)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_group(process)
        if self._scratch is not None:
            self._scratch.cleanup()

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self.port}"

    def complete(self, prompt: Sequence[int], num_tokens: int, **sampling: Any) -> Completion:
        """Return the greedy continuation of ``prompt`` (token ids) through ``/generate``."""
        import requests

        parameters = {
            "temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True, **sampling,
        }  # fmt: skip
        answer = requests.post(
            f"{self.url}/generate",
            json={"input_ids": list(prompt), "sampling_params": parameters},
            timeout=300,
        )
        answer.raise_for_status()
        body = answer.json()
        meta = body["meta_info"]
        verified = meta.get("spec_verify_ct", 0)
        # Each verify step yields one token of the target's own and the accepted drafts; the first
        # token comes from the prefill.
        decoded = meta["completion_tokens"] - 1
        accepted = decoded - verified if verified else 0
        return Completion(
            tokens=list(body["output_ids"]),
            cached_tokens=int(meta["cached_tokens"]),
            accepted_drafts=int(accepted),
            decode_passes=int(verified or decoded),
        )

    def complete_all(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Completion]:
        """Return all continuations, asked for at the same time."""
        return at_once(lambda prompt: self.complete(prompt, num_tokens), prompts)

    def chat(self, messages: Sequence[Mapping[str, str]], num_tokens: int) -> Iterator[str]:
        """Yield the pieces of a streamed chat completion."""
        import requests

        body: dict[str, Any] = {
            "model": "default", "messages": list(messages), "max_tokens": num_tokens,
            "temperature": 0, "stream": True, "ignore_eos": True, "skip_special_tokens": False,
        }  # fmt: skip
        with requests.post(
            f"{self.url}/v1/chat/completions", json=body, stream=True, timeout=300
        ) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                choices = json.loads(line[len(b"data: ") :]).get("choices") or [{}]
                delta = choices[0].get("delta") or {}
                piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
                if piece:
                    yield piece


def at_once(function: Callable[[Asked], Answer], items: Sequence[Asked]) -> list[Answer]:
    """Return what a function gives for each item, all called at the same time.

    Who is interrupted does not wait for answers: the server that owes them is about to be ended.
    """
    pool = ThreadPoolExecutor(len(items))
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process and its children, politely first (it leads a session of its own).

    Who is interrupted again meanwhile has no patience left: they are killed.
    """
    for signum, patience_s in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue
    try:
        os.killpg(process.pid, signal.SIGKILL)  # ranks that outlive their parent
    except ProcessLookupError:
        pass
