"""The watcher of a launcher: samples its APUs, acts as :mod:`watch` decides, and says so.

It runs in the launcher, which sees all APUs of the node. Ranks must schedule alike, so none of them
may pause by itself: the scheduler's limit is changed by a request of SGLang's own, which reaches
all ranks between the same two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools.watch import Sample, Watch

PERIOD_S = 2.0


class Admissions(Protocol):
    """What lets requests in."""

    def limit(self, paused: bool) -> str:
        """Pause or resume; return why that failed, or ""."""


class NoGauges:
    """Gauges of a server that exports no metrics."""

    def show(self, samples: Sequence[Sample], *, paused: bool) -> None:
        """Show nothing."""


class Gauges:
    """Gauges on the server's own ``/metrics``."""

    def __init__(self) -> None:
        # Imported late: SGLang first sets the directory in which its processes share metrics.
        from prometheus_client import Gauge

        self._available: Any = Gauge(
            "sglang_mi300a_apu_available_bytes",
            "Memory of an APU that may be allocated, under every limit",
            labelnames=("apu",),
            multiprocess_mode="mostrecent",
        )
        self._free: Any = Gauge(
            "sglang_mi300a_apu_free_bytes",
            "Free pages of an APU's NUMA node",
            labelnames=("apu",),
            multiprocess_mode="mostrecent",
        )
        self._paused: Any = Gauge(
            "sglang_mi300a_admissions_paused",
            "1 while requests are admitted one at a time for want of memory",
            multiprocess_mode="mostrecent",
        )

    def show(self, samples: Sequence[Sample], *, paused: bool) -> None:
        """Show one round of samples."""
        for sample in samples:
            self._available.labels(apu=str(sample.apu)).set(sample.available_bytes)
            self._free.labels(apu=str(sample.apu)).set(sample.free_bytes)
        self._paused.set(int(paused))


class HttpAdmissions:
    """SGLang's ``/set_internal_state``, through which a running scheduler's batch limit changes."""

    def __init__(self, server_args: Any, full_requests: int) -> None:
        """Prepare requests to a server.

        Args:
            server_args: SGLang's ``ServerArgs``, for address and keys.
            full_requests: Requests that run at once while admissions are open.
        """
        self._server_args = server_args
        self._full_requests = full_requests

    def limit(self, paused: bool) -> str:
        """Let one request run at a time, or as many as planned; return why it failed, or ""."""
        import requests

        key = self._server_args.admin_api_key or self._server_args.api_key
        wanted = 1 if paused else self._full_requests
        try:
            answer = requests.post(
                f"{self._server_args.url()}/set_internal_state",
                json={"server_args": {"pp_max_micro_batch_size": wanted}},
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=30,
                verify=self._server_args.ssl_verify(),
            )
            answer.raise_for_status()
            if not all(row is True for row in answer.json()):
                return f"the scheduler answered {answer.text[:100]}"
        except requests.RequestException as error:
            return str(error)
        return ""


@dataclass
class Watcher:
    """Watches until it is told to stop.

    Attributes:
        watch: What decides.
        sample: Returns one sample of each APU.
        drop: Gives back the page cache of our own files.
        admissions: What lets requests in.
        gauges: Where samples are shown.
        say: Where lines go.
    """

    watch: Watch
    sample: Callable[[], Sequence[Sample]]
    drop: Callable[[], None]
    admissions: Admissions
    gauges: Gauges | NoGauges
    say: Callable[[str], None]
    _paused: bool = field(default=False, init=False)
    _failure: str = field(default="", init=False)

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Watch while ``goes_on()``; ends, and says so, when memory can no longer be told."""
        while goes_on():
            try:
                self.once()
            except UserError as error:
                self.say(f"memory is no longer watched: {error}")
                return
            time.sleep(PERIOD_S)

    def once(self) -> None:
        """Take one round of samples and act on it."""
        samples = self.sample()
        decision = self.watch.step(samples)
        for line in decision.said:
            self.say(line)
        if decision.drop:
            self.drop()
        if decision.pause != self._paused:
            failure = self.admissions.limit(decision.pause)
            if not failure:
                self._paused = decision.pause
            elif failure != self._failure:
                word = "pause" if decision.pause else "resume"
                self.say(f"admissions could not {word}, tried again every round: {failure}")
            self._failure = failure
        self.gauges.show(samples, paused=self._paused)
