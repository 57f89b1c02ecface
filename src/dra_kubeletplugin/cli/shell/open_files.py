"""Raises the limit on the open files and connections of this process.

With too few file descriptors, an event loop only logs errors in an endless loop.
"""

from __future__ import annotations

import resource

from ...errors import SettingsError

# A plugin or webhook accepts up to half of the limit as client connections, at most 128. A local cluster with one driver needs 95 files.
_MIN_FILES = 256
_MAX_FILES = 1024  # with a higher limit, select() in a vendor's library may fail


def need_files() -> None:
    """Raises the limit to at most ``_MAX_FILES``, also for child processes.

    Raises :class:`SettingsError` if the permitted limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if most < _MIN_FILES:
        raise SettingsError(
            f"a process may have {hard} files open here, and {_MIN_FILES} are needed: raise the limit (ulimit -n {_MIN_FILES})"
        )
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
