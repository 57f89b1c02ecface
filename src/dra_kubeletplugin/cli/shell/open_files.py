"""The limit of open files and connections of a process.

With too few descriptors, an event loop does nothing but log errors, forever.
"""

from __future__ import annotations

import resource

from ...errors import SettingsError

_LEAST = 256  # a plugin and a webhook use half for clients, at most 128; a local cluster with one driver needs 95
_WELL = 1024  # above it, select() in a vendor's library may break


def need_files() -> None:
    """Raises the limit up to the usual number, also for child processes.

    Raises :class:`SettingsError` if the permitted limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _WELL if hard == resource.RLIM_INFINITY else min(hard, _WELL)
    if most < _LEAST:
        raise SettingsError(
            f"a process may have {hard} files open here, and {_LEAST} are needed: raise the limit (ulimit -n {_LEAST})"
        )
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
