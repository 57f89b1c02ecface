"""``dra controller`` for the fabric example, in a process that kills itself at its n-th step (``KILL_AT``; never when 0).

Steps are before and after each request about claims and records, and before and after the fabric attaches or detaches.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.kube.transport import Transport

DRIVER = Path(__file__).parents[3] / "drivers/fabric_example"
_COUNTED = re.compile(r"/(configmaps|resourceclaims)\b")
_at = int(os.environ.get("KILL_AT", "0"))
_steps = 0


def step(step_name: str) -> None:
    global _steps
    _steps += 1
    print(f"step {_steps}: {step_name}", flush=True)
    if _steps == _at:
        os.kill(os.getpid(), signal.SIGKILL)


def with_steps(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        step(f"before {name}")
        result = method(*args, **kwargs)
        step(f"after {name}")
        return result

    return run


def with_request_steps(request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(request)
    async def run(self: Transport, method: str, target: str, *args: Any) -> Any:
        match = _COUNTED.search(target)
        if not match or "limit=" in target:
            return await request(self, method, target, *args)
        step(f"before {method} {match[1]}")
        response = await request(self, method, target, *args)
        step(f"after {method} {match[1]}")
        return response

    return run


if __name__ == "__main__":
    module = sys.modules[load_driver(str(DRIVER)).__module__]
    manager: Any = vars(module)["FabricManager"]
    for name in ("attach", "detach"):
        setattr(manager, name, with_steps(getattr(manager, name), name))
    Transport.request = with_request_steps(Transport.request)  # type: ignore[method-assign]
    sys.exit(main(["controller", f"{module.__name__}:Fabric"]))
