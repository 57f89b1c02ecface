"""Objects and exceptions of an author's whose own methods raise when they are looked at: told as his fault, in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kubeletplugin import cli

HEAD = """
from dra_kubeletplugin import *
from dra_kubeletplugin.errors import DriverError


class Boom({boom}): ...


def odd(base):
    def no(*args, **kwargs):
        raise Boom("boom")

    return type("Odd", (base,), {{"{name}": property(no) if "{name}" in ("__class__", "__name__") else no}})


thing, text, many = odd(object)(), odd(str)("d-0"), odd(dict)({{"a": 1}})
E, D, B = odd(Exception), odd(DriverError), odd(BaseException)


class Plain(Driver):
    name = "acme.example.com"

    async def devices(self):
        return [Device("d-0")]

    async def prepare(self, claim):
        return []


"""
LOOKED_AT = (
    "__class__", "__str__", "__repr__", "__eq__", "__hash__", "__len__", "__bool__", "__getattr__", "__getattribute__", "__iter__",
    "__format__", "__await__", "__aiter__", "items", "keys", "__name__",
)  # fmt: skip
ANSWERS = (
    "thing", "text", "many", "[thing]", "[text]", "[Device(text)]", "[Device(thing)]", "[Device('d-0', attributes=many)]",
    "[Device('d-0', attributes={'x': thing})]", "[Device('d-0', attributes={'x': text})]", "[Device('d-0', data=thing)]",
    "[Device('d-0', capacity={'x': thing})]", "[Device('d-0', taints=[thing])]", "[Device('d-0', extra=thing)]",
    "[Device('d-0', nodes=thing)]", "[odd(Device)('d-0')]", "odd(Device)('d-0')",
)  # fmt: skip
POOLS = (
    "[thing]",
    "[Pool('node', thing)]",
    "[Pool('node', [thing])]",
    "[Pool(thing, [])]",
    "[Pool('node', [], thing)]",
)
HEALTH = (
    "thing", "many", "{'d-0': thing}", "{text: Health(True)}", "{'d-0': Health(thing)}", "{'d-0': Health(False, thing)}",
    "{'d-0': Health(False, 'x', thing)}", "{'d-0': Health(True, measured=thing)}", "{'d-0': odd(Health)(True)}",
)  # fmt: skip
CONFIG = "class C(Config):\n    a: int = 1\n\n    def check(self):\n        "
ROWS = [
    *(("", f"def devices(self):\n        return {a}") for a in ANSWERS),
    *(("", f"async def devices(self):\n        return {a}") for a in ANSWERS[:5]),
    *(("", f"def pools(self):\n        return {a}") for a in POOLS),
    *(("", f"def health(self):\n        return {a}") for a in HEALTH),
    *(("", f"{kind} {m}(self):\n        raise {e}('odd')") for m in ("devices", "health", "start") for e in "EDB" for kind in ("def", "async def")),
    *(("", f"def __init__(self):\n        raise {e}('odd')") for e in "EDB"),
    *((CONFIG + f"raise {e}('odd')\n\n\n", "config = C") for e in "EDB"),
    *((f"raise {e}('odd')\n\n\n", "") for e in "EDB"),
    (CONFIG + "return thing\n\n\n", "config = C"),
    (CONFIG + "raise odd(ValueError)('x')\n\n\n", "config = C"),
    ("class C(Config):\n    a: int = thing\n\n\n", "config = C"),
    ("class C(Config):\n    KIND = OLDER = thing\n\n\n", "config = C"),
    *(("", f"{name} = thing") for name in ("config", "unhealthy_taint", "metadata", "subsystems", "devices", "own")),
    ("", "name = odd(str)('acme.example.com')"),
    ("", "config = [thing]"),
]  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "boom"), [*((n, "Exception") for n in LOOKED_AT), ("__class__", "SystemExit"), ("__repr__", "SystemExit")]
)
def test_whatever_raises_when_it_is_looked_at_is_reported_in_a_sentence(
    tmp_path: Path, name: str, boom: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for i, (before, body) in enumerate(ROWS):
        path = tmp_path / f"driver_{i}.py"
        path.write_text(HEAD.format(name=name, boom=boom) + f"{before}class Acme(Plain):\n    own = 1\n    {body}\n")
        caplog.clear()
        code = cli.main(["inspect", f"{path}:Acme"])
        said = "".join(capsys.readouterr())
        assert code in {0, 2}, (before, body)
        assert code == 0 or "dra: " in said, (before, body)
        assert "Traceback" not in said, (before, body, said)
        assert "dra_kubeletplugin/" not in caplog.text, (before, body, caplog.text)
