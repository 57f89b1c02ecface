"""Finds the libraries and programs of NVIDIA's driver, with the host's names and with the names for this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .nvml import LIBRARY
from .sdk import NoLibraryError

PLACES = (
    "/",  # the distribution's package
    "/run/nvidia/driver",  # a driver container of NVIDIA's GPU operator
    "/home/kubernetes/bin/nvidia",  # GKE
    "/usr/local/nvidia",
)
LIBRARIES = (
    "lib64",
    "lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
)
PROGRAMS = ("bin", "usr/bin")
MAX_LINKS = 40  # as in Linux


@dataclass(frozen=True)
class DriverRoot:
    """The user-space part of NVIDIA's driver.

    Attributes:
        host: the root folder on the host.
        here: the same folder as this process sees it.
        libraries: the folder of the libraries, relative to the root.
    """

    host: Path
    here: Path
    libraries: str

    @property
    def library_folder(self) -> Path:
        """The folder of the libraries, as this process sees it."""
        return self.here / self.libraries

    @property
    def nvml(self) -> Path:
        """The library NVML, as this process sees it, with links resolved."""
        return resolved(self.here, self.library_folder / LIBRARY)

    @property
    def is_own_folder(self) -> bool:
        """Whether the folder has only the driver's libraries. A distribution's folder also has the host's C library."""
        return not (self.library_folder / "libc.so.6").exists()

    def host_file(self, path: Path) -> Path:
        """Returns the host's name of a file below :attr:`here`."""
        return self.host / path.relative_to(self.here)

    def library(self, name: str) -> Path | None:
        """Returns a library, as this process sees it, with links resolved; None if the driver does not have it."""
        path = resolved(self.here, self.library_folder / name)
        return path if path.is_file() else None

    def program(self, name: str) -> Path | None:
        """Returns a program, as this process sees it, with links resolved; None if the driver does not have it."""
        found = (resolved(self.here, self.here / folder / name) for folder in PROGRAMS)
        return next((p for p in found if p.is_file()), None)


def resolved(root: Path, path: Path) -> Path:
    """Resolves the links of a path as on the host: an absolute link begins at ``root``.

    Debian's packages of NVIDIA's driver have absolute links below ``/etc/alternatives``.
    """
    found, rest, links = root, list(path.relative_to(root).parts), 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            found = root if found == root else found.parent
        elif (found / part).is_symlink() and links < MAX_LINKS:
            links += 1
            target = (found / part).readlink()
            rest[:0] = target.parts[1:] if target.is_absolute() else target.parts
            found = root if target.is_absolute() else found
        else:
            found /= part
    return found


def find(host_root: Path, wanted: str = "") -> DriverRoot:
    """Finds the driver's files.

    Args:
        host_root: where this process sees the root folder of the host.
        wanted: the driver's root folder on the host; empty for the first of :data:`PLACES` that has the library.

    Raises:
        NoLibraryError: none of the folders has the library.
    """
    places = [wanted] if wanted else list(PLACES)
    for place in places:
        here = host_root / place.lstrip("/")
        for folder in LIBRARIES:
            # Container engines create a folder in place of a missing file that they mount, so a folder does not count.
            found = DriverRoot(Path(place), here, folder)
            if found.nvml.is_file():
                return found
    raise NoLibraryError(
        f"{LIBRARY} is in no library folder below {', '.join(places)} of the host (here {host_root}): "
        "install NVIDIA's driver, or set NVIDIA_DRIVER_ROOT"
    )
