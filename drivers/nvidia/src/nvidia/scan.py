"""Finds the GPUs of a node. Remembers GPUs that are lost or passed through, and cleans up GPUs that come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from dra_kubeletplugin import PciFunction, RetryableError

from .machine import Machine
from .mig_notes import MigMode
from .options import NvidiaOptions
from .sdk import Gpu, LibraryError, Profile

KERNEL_DRIVER = "nvidia"
REOPEN_INTERVAL = 60.0  # seconds


class Scanner:
    """The GPUs of a node, as the last scan found them.

    Args:
        machine: returns the opened library, and opens it at the first call.
        lock: returns the lock of a GPU.
    """

    def __init__(
        self,
        machine: Callable[[], Machine],
        lock: Callable[[str], AbstractContextManager[None]],
        options: NvidiaOptions,
        log: logging.Logger,
    ) -> None:
        self._machine = machine
        self._lock = lock
        self._options = options
        self._log = log
        self._unchecked: set[str] | None = None  # addresses to check for instances without a claim; None for all
        self._reopened: tuple[set[str], float] = (set(), 0.0)  # the functions that NVML did not see then, and when
        self.known: dict[str, tuple[Gpu, list[Profile]]] = {}
        """The GPUs with their profiles, by address."""
        self.lost: set[str] = set()
        """The addresses of the known GPUs that NVML does not see any more."""
        self.bound: set[str] = set()
        """The addresses of the functions with NVIDIA's kernel driver."""

    def scan(self, functions: Sequence[PciFunction]) -> dict[str, tuple[Gpu, list[Profile]]]:
        """Returns the GPUs with their profiles, by address. GPUs that are lost or passed through stay as they were.

        A GPU that an operator unbinds is no longer returned, unless claims may pass it through.
        """
        self.bound = bound = {fn.address for fn in functions if fn.driver == KERNEL_DRIVER}
        if bound:
            present = self._present()
            missing = sorted(bound - present.keys())
            if missing and not present and not self.known:
                raise RetryableError(
                    f"NVML sees no GPU, and PCI has {', '.join(missing)}: this process needs /dev/nvidia*"
                )
            for address, gpu in present.items():
                try:
                    self.known[address] = gpu, self._profiles(gpu)
                except LibraryError as e:  # one GPU must not hide changes of the others
                    self._log.warning("cannot read the MIG profiles of %s: %s", address, e)
            lost = {address for address in missing if address in self.known}
            if new := sorted(lost - self.lost):
                self._log.warning("NVML does not see GPUs any more: %s", ", ".join(new))
            self.lost = lost
        kept = {fn.address for fn in functions} if self._options.nvidia_passthrough else bound
        self.known = {address: known for address, known in self.known.items() if address in kept}
        return dict(self.known)

    def check_again(self, address: str) -> None:
        """Makes the next scan that finds a GPU destroy its instances that no claim has."""
        if self._unchecked is not None:
            self._unchecked.add(address)

    def _present(self) -> dict[str, Gpu]:
        """Returns the GPUs that NVML sees, by address, after they were cleaned up."""
        gpus = self._machine().gpus
        present = {gpu.address: gpu for gpu in gpus.gpus()}
        if self._reopens(self.bound - present.keys()):
            with gpus.closed():
                pass
            present = {gpu.address: gpu for gpu in gpus.gpus()}
        if self._options.nvidia_mig == "dynamic" and self._clean_up(present):
            present = {gpu.address: gpu for gpu in gpus.gpus()}
        return present

    def _reopens(self, missing: set[str]) -> bool:
        """Whether to open NVML again, which takes seconds: only then it finds a GPU that was bound again or reset."""
        before, at = self._reopened
        is_due = missing != before or time.monotonic() > at + REOPEN_INTERVAL
        if is_due:
            self._reopened = missing, time.monotonic()
        return bool(missing) and is_due

    def _clean_up(self, present: Mapping[str, Gpu]) -> bool:
        """Destroys instances that no claim has: at the first scan, and of a GPU that was lost when its claim ended.

        Then turns off MIG mode that stayed on after the last claim. A later scan cleans up a GPU that is lost or fails.
        Returns whether MIG mode was changed.
        """
        partitions = self._machine().partitions
        self._unchecked = set(self.bound if self._unchecked is None else self._unchecked)
        changed = False
        for address, gpu in sorted(present.items()):
            is_unused = partitions.mode(address) is MigMode.UNUSED
            if address not in self._unchecked and not is_unused:
                continue
            try:
                with self._lock(address):
                    if gpu.mig and address in self._unchecked:
                        partitions.destroy_unclaimed(gpu)
                    if is_unused:
                        changed |= partitions.turn_off_unused(gpu)
            except RetryableError as e:
                self._log.warning("cannot look for MIG instances without a claim on %s: %s", address, e)
            else:
                self._unchecked.discard(address)
        return changed

    def _profiles(self, gpu: Gpu) -> list[Profile]:
        has_partitions = gpu.mig is not None and not gpu.is_vgpu and (gpu.mig or gpu.reads_profiles)
        wanted = has_partitions and (self._options.nvidia_mig == "dynamic" or gpu.mig)
        return self._machine().gpus.profiles(gpu.uuid) if wanted else []
