"""How many files and connections a process may have open: with too few an event loop does nothing but complain, for ever."""

from __future__ import annotations

import resource

from ...errors import SettingsError

_LEAST = 256  # a plugin and a webhook use half for clients, at most 128; a local cluster with one driver has 95 files
_WELL = 1024  # above it select() of a vendor's library may break


def need_files() -> None:
    """Takes as many as it may have up to the usual number, for the processes that it starts too.

    Raises :class:`SettingsError` where that is too few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _WELL if hard == resource.RLIM_INFINITY else min(hard, _WELL)
    if most < _LEAST:
        raise SettingsError(
            f"a process may have {hard} files open here, and {_LEAST} are needed: raise the limit (ulimit -n {_LEAST})"
        )
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
