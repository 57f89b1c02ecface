"""Watches the events of the GPUs in a thread, and judges the health of each GPU.

A GPU is unhealthy while it is lost, while its kernel driver asks for a recovery action, or while defective memory
rows could not be replaced. An XID error alone does not make it unhealthy: the kernel driver knows whether the GPU
works again. Only for kernel drivers that do not know it, an XID error of the hardware counts until the plugin
restarts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from dra_kubeletplugin import Health, Taint
from dra_kubeletplugin.driver.metrics import Counter

from .sdk import Event, Gpu, GpuLostError, Gpus, LibraryError, LibraryReplacedError

PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XID errors that a program causes; the GPU works afterwards."""
SHOWN_FOR = 600.0
"""Seconds for which a past XID error is reported."""
WAIT = 1.0
PAUSE = 5.0
INFORMATIONAL = "None"  # the effect of a taint that keeps no pod away
MAX_ERRORS = 64  # per GPU; older errors are forgotten


@dataclass(frozen=True)
class Error:
    """An error that a GPU reported."""

    xid: int
    kind: str
    gpu_instance: int | None
    at: float

    @property
    def text(self) -> str:
        return f"XID {self.xid}" if self.xid else self.kind


@dataclass(frozen=True)
class Verdict:
    """The health of a GPU, or of a MIG instance.

    Attributes:
        fault: why it is unhealthy; empty if it is healthy.
        unknown: why its health is not known; empty if it is known.
        key: of the taint for the fault, without the driver's name.
        xid: the XID error that is the value of this taint; empty if there is none.
        errors: recent errors, the newest first.
    """

    fault: str = ""
    key: str = ""
    errors: tuple[Error, ...] = ()
    unknown: str = ""
    xid: str = ""

    @property
    def concerns_instances(self) -> bool:
        """Whether an error concerns only one instance."""
        return any(e.gpu_instance is not None for e in self.errors)

    def of_instance(self, number: int | None) -> Verdict:
        """Returns the verdict for a device without errors of other instances. ``number`` is of its GPU instance."""
        return replace(self, errors=tuple(e for e in self.errors if e.gpu_instance in {None, number}))

    def health(self, driver: str, obstacle: str) -> Health:
        """Returns the report to the framework.

        Args:
            driver: the driver's name, which begins the keys of taints.
            obstacle: why events cannot be received; empty if they are.
        """
        xid = next((str(e.xid) for e in self.errors if e.xid), "")
        taints = [Taint(key=f"{driver}/unmonitored", effect=INFORMATIONAL)] if obstacle else []
        if self.unknown:
            return Health(None, self.unknown, taints)
        if self.fault:
            return Health(False, self.fault, [Taint(key=f"{driver}/{self.key}", value=self.xid), *taints])
        if xid:
            taints.append(Taint(key=f"{driver}/xid", value=xid, effect=INFORMATIONAL))
        notes = [f"works after {', '.join(e.text for e in self.errors)}"] if self.errors else []
        notes += [f"NVML reports no events: {obstacle}"] if obstacle else []
        return Health(True, "; ".join(notes), taints)


class Monitor:
    """The thread that waits for events.

    Args:
        gpus: the library.
        changed: called after an event.
        replaced: called once when the kernel driver was updated, with the reason; the thread then ends.
        ignored: XID errors that count as errors of programs, besides :data:`PROGRAM_XIDS`.
        counter: of errors, by ``gpu`` and ``error``.
    """

    def __init__(
        self,
        gpus: Gpus,
        changed: Callable[[], None],
        replaced: Callable[[str], None],
        log: logging.Logger,
        ignored: Collection[int] = (),
        counter: Counter | None = None,
    ) -> None:
        self._gpus = gpus
        self._changed = changed
        self._replaced = replaced
        self._log = log
        self._counter = counter
        self._program_xids = PROGRAM_XIDS | frozenset(ignored)
        self._errors: dict[str, list[Error]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self.run, name="gpu-events", daemon=True)
        self.obstacle = ""
        """Why events cannot be received; empty if they are."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Receives events until :meth:`stop`. :meth:`start` calls it in the thread."""
        while not self._stopped.is_set():
            try:
                event = self._gpus.wait(WAIT)
            except LibraryReplacedError as e:
                self._replaced(str(e))
                return
            except GpuLostError:
                self._changed()
                self._stopped.wait(PAUSE)
            except LibraryError as e:
                self._note_obstacle(str(e))
                self._stopped.wait(PAUSE)
            else:
                self._note_obstacle("")
                if event:
                    self._note(event)

    def obstacle_of(self, uuid: str) -> str:
        """Returns why events of a GPU cannot be received; empty if they are."""
        return self.obstacle or self._gpus.unmonitored().get(uuid, "")

    def _note_obstacle(self, text: str) -> None:
        if text != self.obstacle and not self._stopped.is_set():
            self.obstacle = text
            if text:
                self._log.warning("cannot receive events of GPUs: %s", text)
            self._changed()

    def _note(self, event: Event) -> None:
        error = Error(event.xid, event.kind, event.gpu_instance, time.time())
        if error.xid or event.kind != "MIG configuration change":
            self._log.warning("GPU %s reported %s", event.gpu, error.text)
            if self._counter:
                self._counter.labels(gpu=event.gpu, error=error.text).inc()
            with self._lock:
                errors = self._errors.setdefault(event.gpu, [])
                errors.append(error)
                if len(errors) > MAX_ERRORS:  # errors of programs first: an old error of the hardware still counts
                    errors.remove(next(filter(self.is_of_program, errors), errors[0]))
        self._changed()

    def recent(self, uuid: str) -> tuple[Error, ...]:
        """Returns the errors of a GPU of the last minutes, the newest first, and the newest of each kind only."""
        with self._lock:
            errors = [e for e in self._errors.get(uuid, ()) if e.at > time.time() - SHOWN_FOR]
        newest = {(e.text, e.gpu_instance): e for e in errors}
        return tuple(sorted(newest.values(), key=lambda e: -e.at))

    def verdict(self, gpu: Gpu) -> Verdict:
        """Judges a GPU."""
        errors = self.recent(gpu.uuid)
        try:
            recovery = self._gpus.recovery(gpu.uuid)
        except GpuLostError as e:
            return Verdict(f"the GPU is lost: {e}", "gpu-lost", errors)
        except LibraryError as e:
            return Verdict(unknown=f"NVML does not report the GPU's health: {e}", errors=errors)
        hardware = next((e for e in errors if not self.is_of_program(e)), None)
        cause, key = (f" after {hardware.text}", "xid" if hardware.xid else "fault") if hardware else ("", "fault")
        xid = str(hardware.xid) if hardware and hardware.xid else ""
        if recovery.action:
            return Verdict(f"NVIDIA's driver asks{cause}: {recovery.action}", key, errors, xid=xid)
        if recovery.rows_failed:
            return Verdict(f"defective memory rows could not be replaced{cause}", key, errors, xid=xid)
        if recovery.action is None and (unknown := self._hardware(gpu.uuid)):
            key, xid = ("xid", str(unknown.xid)) if unknown.xid else ("fault", "")
            fault = f"{unknown.text}, and NVIDIA's driver cannot tell whether the GPU works"
            return Verdict(fault, key, errors, xid=xid)
        return Verdict(errors=errors)

    def is_of_program(self, error: Error) -> bool:
        return error.xid in self._program_xids

    def _hardware(self, uuid: str) -> Error | None:
        with self._lock:
            errors: Iterable[Error] = reversed(self._errors.get(uuid, []))
            return next((e for e in errors if not self.is_of_program(e)), None)
