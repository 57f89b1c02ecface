"""Runs the driver under test as a process of its own: with its environment, its output, and an end in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from dra_devkit.localcluster.child_signals import signal_child
from dra_kubeletplugin.errors import SettingsError

from .transcript import Transcript

VARIABLES = (
    "KUBELET_ROOT",
    "PLUGINS_REGISTRY",
    "PLUGIN_DATA_DIR",
    "CDI_ROOT",
    "KUBECONFIG",
    "NODE_NAME",
    "POD_UID",
    "POD_NAMESPACE",
    "POD_NAME",
)
"""The environment variables with which the suite starts a driver."""
FIXED_KUBELET_ROOT = Path("/var/lib/kubelet")
FIXED_CDI_ROOT = Path("/var/run/cdi")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LINES = 1000  # lines of output that are kept
_LINE = 4000  # maximum bytes of a kept line
_SHOWN = 300  # maximum characters of a line in an error
_POLL = 0.01  # seconds
_DRAIN = 1.0  # seconds to wait for the rest of the output of an ended process


class DriverNotReady(Exception):
    """The driver ended, or was not ready in time. The text is a sentence with the cause."""


@dataclass(frozen=True)
class DriverCommand:
    """The command of a driver.

    Args:
        words: the words of the command. ``$NAME`` and ``${NAME}`` are replaced with environment variables.
        fixed_paths: whether the driver uses the fixed paths of a node. It then runs in its own mount namespace.
        host: name or file of a described host, for a driver that reads SYSFS_ROOT; empty for this machine.
    """

    words: Sequence[str]
    fixed_paths: bool = False
    host: str = ""

    @classmethod
    def parse(cls, text: str, *, fixed_paths: bool = False, host: str = "") -> DriverCommand:
        """Splits a command into words like a shell. Raises :class:`SettingsError`."""
        try:
            words = shlex.split(text)
        except ValueError as e:
            raise SettingsError(f"--driver-cmd {text!r} cannot be split into words: {e}") from None
        if not words:
            raise SettingsError("--driver-cmd is empty: use the command that starts the driver")
        if fixed_paths and not can_unshare():
            if os.geteuid() == 0:
                need = "but root may not create one here: in a container, add the capability SYS_ADMIN (docker run --privileged)"
            else:
                need = "so it needs root: run the command with sudo"
            raise SettingsError(f"--fixed-paths needs a mount namespace, {need}; or set other paths for the driver")
        return cls(words, fixed_paths, host)

    def expanded(self, env: Mapping[str, str]) -> list[str]:
        """Returns the words with variables replaced. Raises :class:`SettingsError` for an unknown variable."""
        out = []
        for word in self.words:
            try:
                out.append(Template(word).substitute(env))
            except KeyError as e:
                raise SettingsError(
                    f"--driver-cmd uses the variable {e.args[0]}, which is not set; the suite sets {', '.join(VARIABLES)}"
                ) from None
            except ValueError:
                raise SettingsError(f"--driver-cmd: {word!r} has a $ without a name: write $$ for a dollar") from None
        return out

    def program(self, env: Mapping[str, str], boot_id: Path | None = None) -> list[str]:
        """Returns the arguments of the process that runs the command: in a mount namespace if the paths or the boot id need it."""
        words = self.expanded(env)
        mounts = []
        if self.fixed_paths:
            mounts += [(env["KUBELET_ROOT"], str(FIXED_KUBELET_ROOT)), (env["CDI_ROOT"], str(FIXED_CDI_ROOT))]
            for _, target in mounts:
                Path(target).mkdir(parents=True, exist_ok=True)
        if boot_id is not None:
            mounts.append((str(boot_id), _BOOT_ID))
        if not mounts:
            return words
        binds = " && ".join(f"mount --bind {shlex.quote(source)} {shlex.quote(at)}" for source, at in mounts)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{binds} && exec "$@"', "sh", *words]


def can_unshare() -> bool:
    """Returns whether this process may create a mount namespace."""
    if os.geteuid() != 0 or not (program := shutil.which("unshare")):
        return False
    return subprocess.run([program, "--mount", "true"], check=False, capture_output=True).returncode == 0  # noqa: S603


@dataclass(eq=False)
class DriverInstance:
    """One process of the driver. ``uid`` is its POD_UID."""

    process: asyncio.subprocess.Process
    uid: str
    transcript: Transcript
    raw: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LINES))
    _reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, program: Sequence[str], env: Mapping[str, str], folder: Path, transcript: Transcript
    ) -> DriverInstance:
        """Starts the process in ``folder``.

        Raises :class:`DriverNotReady` if the program cannot be executed.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *program,
                env=env,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                umask=0o022,
            )
        except OSError as e:
            raise DriverNotReady(f"the driver's program {program[0]} cannot be started: {e.strerror}") from None
        out = cls(process, env.get("POD_UID", ""), transcript)
        transcript.add("driver", f"started as process {process.pid}", " ".join(program))
        out._reading = asyncio.create_task(out._read(), name="output of the driver")
        return out

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> list[str]:
        """The last lines of output, with unprintable characters replaced."""
        texts = [line.decode(errors="replace") for line in self.raw]
        return ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text) for text in texts]

    @property
    def last_lines(self) -> str:
        return "\n".join(line[:_SHOWN] for line in self.output[-15:]) or "(no output)"

    @property
    def ending(self) -> str:
        """The reason why the process ended."""
        code = self.process.returncode or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def _read(self) -> None:
        assert self.process.stdout
        rest = b""
        while data := await self.process.stdout.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE:
                lines.append(rest)
                rest = b""
            self.raw.extend(line[:_LINE] for line in lines)
        if rest:
            self.raw.append(rest)

    async def kill(self) -> None:
        """Kills the process and its children with SIGKILL."""
        if self.alive:
            self.transcript.add("driver", f"SIGKILL for process {self.pid}")
        self._signal_group(signal.SIGKILL)
        await self._ended()

    async def terminate(self, timeout: float) -> float | None:
        """Sends SIGTERM. Returns the seconds until the process ended, or None if it had to be killed."""
        began = asyncio.get_running_loop().time()
        signal_child(self.process, signal.SIGTERM)
        self.transcript.add("driver", f"SIGTERM for process {self.pid}")
        try:
            async with asyncio.timeout(timeout):
                await self._exit()
        except TimeoutError:
            await self.kill()
            return None
        took = asyncio.get_running_loop().time() - began
        self._signal_group(signal.SIGKILL)  # kills remaining children
        await self._ended()
        self.transcript.add("driver", f"process {self.pid} ended with {self.ending} after {took:.2f} s")
        return took

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _ended(self) -> None:
        await self._exit()
        await self.drain()
        if self._reading is not None:
            self._reading.cancel()

    async def _exit(self) -> None:
        """Waits until the process has ended. ``Process.wait`` would also wait for children that keep the output open."""
        while self.alive:  # noqa: ASYNC110 the exit has no event of its own
            await asyncio.sleep(_POLL)

    async def drain(self) -> None:
        """Waits until all output of the ended process is read. The time is limited, because a child may keep the output open."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_DRAIN)

    def memory(self) -> int:
        """Returns the resident bytes of the process and its children."""
        pages = 0
        for pid in self._pids():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Returns the number of open files of the process."""
        try:
            return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        except OSError:
            return 0

    def _pids(self) -> list[int]:
        """Returns the processes of the session that the driver's process leads."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(path.name)) == self.pid:
                    found.append(int(path.name))
        return found
