"""Mistakes in drivers, and what each error message must contain: the fault, its place, the nearest name, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DRIVER = "acme.example.com"
HEAD = """from __future__ import annotations

import msgspec

from dra_kubeletplugin import (
    Capacity, Claim, Config, ContainerEdits, CounterSet, Device, Driver, Health, Mount, Pool, PreparedDevice, Quantity, RequestPolicy,
    Taint, Version
)


class Plain(Driver):
    name = "acme.example.com"

    async def devices(self):
        return [Device("d-0", attributes={"index": 0})]

    async def prepare(self, claim):
        return [d.prepared(ContainerEdits(env={"CARD": d.name})) for d in claim.devices]


"""
MARK = "  # here"  # marks the line that the error must name


@dataclass(frozen=True)
class Mistake:
    """A driver with one mistake.

    Args:
        expected: texts that the error message must contain.
        before: source code above the class.
        parameters: opaque parameters of a claim.
    """

    name: str
    body: str
    expected: tuple[str, ...]
    before: str = ""
    parameters: Mapping[str, Any] | None = None

    def write(self, folder: Path, driver: str = DRIVER) -> Path:
        """Writes the driver's module and returns its path. ``driver`` is the name of the driver."""
        path = folder / "acme" / "driver.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.source.replace(f'"{DRIVER}"', f'"{driver}"'))
        return path

    def target(self, folder: Path, driver: str = DRIVER) -> str:
        """Writes the driver's module and returns the command-line argument that selects the driver."""
        return f"{self.write(folder, driver)}{':Acme' if self.body else ''}"

    @property
    def source(self) -> str:
        body = "".join(f"    {line}\n" for line in self.body.splitlines())
        return f"{HEAD}{self.before}class Acme(Plain):\n{body}" if self.body else self.before

    @property
    def expected_texts(self) -> tuple[str, ...]:
        """Returns ``expected``, and the place of the marked line."""
        lines = self.source.splitlines()
        return self.expected + tuple(f"acme/driver.py:{i}" for i, line in enumerate(lines, 1) if line.endswith(MARK))


def check_message(text: str, mistake: Mistake) -> None:
    """Asserts that the message contains all expected texts, and no internals of the framework."""
    message = text.replace("Did you mean", "did you mean")  # the spelling of Python 3.13
    missing = [part for part in mistake.expected_texts if part not in message]
    assert not missing, f"{missing} not in: {text}"
    check_no_traceback(text)


def check_no_traceback(text: str) -> None:
    assert "Traceback" not in text
    assert "dra_kubeletplugin/" not in text.replace(
        "dra_kubeletplugin/__init__.py", ""
    )  # Python itself names this file
    assert "<object object at" not in text


def file(name: str, text: str, *expected: str) -> Mistake:
    return Mistake(name, "", expected, text)


def cls(name: str, body: str, *expected: str) -> Mistake:
    return Mistake(name, body, expected)


def config(name: str, body: str, *expected: str) -> Mistake:
    text = "".join(f"    {line}\n" for line in body.splitlines())
    return Mistake(name, "config = AcmeConfig", expected, f"class AcmeConfig(Config):\n{text}\n\n")


def options(name: str, body: str, *expected: str) -> Mistake:
    head = "from dataclasses import dataclass\nfrom enum import Enum\nfrom pathlib import Path\n\n\n@dataclass(frozen=True)\n"
    text = "".join(f"    {line}\n" for line in body.splitlines())
    return Mistake(name, "options = AcmeOptions()", expected, f"{head}class AcmeOptions:\n{text}\n\n")


def claim_parameters(name: str, body: str, parameters: Mapping[str, Any], *expected: str) -> Mistake:
    return replace(config(name, body, *expected), parameters=parameters)


def devices(name: str, returned: str, *expected: str) -> Mistake:
    return Mistake(name, f"def devices(self):\n    return {returned}{MARK}", expected)


def devices_result(name: str, returned: str, *expected: str) -> Mistake:
    return Mistake(name, f"def devices(self):{MARK}\n    return {returned}", expected)


def beside_a_good_device(mistake: Mistake) -> Mistake:
    """Returns the mistake in a driver that has a valid device too, because a driver without any is not ready."""
    head, word, value = mistake.body.rpartition("return ")
    is_pool = value.startswith("[Pool(")
    good = value.replace("[Device(", "[Device('good'), Device(", 1) if is_pool else f"[*{value}, Device('good')]"
    return replace(mistake, body=f"{head}{word}{good}")


def pools(name: str, pool: str, *expected: str) -> Mistake:
    return Mistake(name, f"def pools(self):\n    return [Pool(self.settings.node_name, {pool})]", expected)


def prepare(name: str, returned: str, *expected: str) -> Mistake:
    return Mistake(name, f"async def prepare(self, claim):\n    return {returned}{MARK}", expected)


def prepare_result(name: str, returned: str, *expected: str) -> Mistake:
    return Mistake(name, f"def prepare(self, claim):{MARK}\n    return {returned}", expected)


def undo(name: str, call: str, *expected: str) -> Mistake:
    body = (
        f"async def prepare(self, claim):\n    {call}{MARK}\n    return []\n\nasync def close(self, claim, port): ..."
    )
    return Mistake(name, body, expected)


def health(name: str, returned: str, *expected: str) -> Mistake:
    return Mistake(name, f"def health(self):{MARK}\n    return {returned}", expected)


FILES = [
    file("two drivers", HEAD + "class A(Plain): ...\n\n\nclass B(Plain): ...\n\n\ndel Plain\n", "2 subclasses of Driver", "driver.py:A or ", "driver.py:B"),
    file("no driver", "class Acme:\n    def devices(self): ...\n", "defines no subclass of Driver: derive it from Driver, class Acme(Driver)"),
    file("an import that fails", "import acme_sdk  # here\n", "No module named 'acme_sdk'", "install it", "pyproject.toml"),
    file("a misspelled name", "from dra_kubeletplugin import Devise  # here\n", "did you mean 'Device'?"),
    file("a relative import", "from .sdk import Sdk  # here\n", "put an empty __init__.py into", "which makes it a package"),
    file("a syntax error", "class A(Driver)\n    pass\n", "SyntaxError: expected ':' (driver.py, line 1)"),
    file("run() without a guard", HEAD + "from dra_kubeletplugin import run\n\nrun(Plain)  # here\n", 'if __name__ == "__main__":'),
    Mistake("a shared default", "config = C", ("Using a non-empty mutable collection ([1]) as a default value is unsafe", "configure a `default_factory`"), "class C(Config):  # here\n    ports: list[int] = [1]\n\n\n"),
    Mistake("a dataclass", "config = C", ("AttributeError: readonly attribute",), "from dataclasses import dataclass\n\n\n@dataclass  # here\nclass C(Config):\n    port: int = 1\n\n\n"),
    Mistake("a config with an __init__", "config = C", ("Struct types cannot define __init__",), "class C(Config):  # here\n    port: int = 1\n\n    def __init__(self): ...\n\n\n"),
]  # fmt: skip
CLASSES = [
    cls("a wrong name", "name = 'Acme_example.com'", "Acme.name 'Acme_example.com' is not a DNS subdomain"),
    cls("no subsystems", "subsystems = None", "Acme.subsystems is None: set it to a list of kernel subsystems such as"),
    cls("unprepares", "def unprepares(self, claim): ...", "Acme.unprepares() is never called, did you mean `unprepare`?"),
    cls("another style", "async def unPrepare(self, claim): ...", "did you mean `unprepare`?"),
    cls("helth", "def helth(self): return {}", "did you mean `health`?"),
    cls("configs", "configs = Config", "Acme.configs is never used, did you mean `config`?"),
    cls("subsystem", "subsystem = ('pci',)", "did you mean `subsystems`?"),
    cls("gates_off", "gates_off = 'DRADeviceTaints'", "Acme.gates_off is set by the framework"),
    cls("host", "host = None", "Acme.host is set by the framework"),
    cls("rescan", "def rescan(self): ...", "Acme.rescan is a method of the framework that the driver calls"),
    cls("a taint that is text", "unhealthy_taint = 'NoSchedule'", "Acme.unhealthy_taint is 'NoSchedule': set it to Taint(key=..., effect=...)"),
    config("a misspelled check", "speed: int = 1\ndef chek(self): ...", "AcmeConfig.chek() is never called, did you mean `check`?"),
    config("kind", "kind = 'Acme'", "AcmeConfig.kind is never used, did you mean `KIND`?"),
    config("a version without a group", "API_VERSION = 'acme.example.com/'", "is not GROUP/VERSION"),
    Mistake("a conversion that is no class method", "config = New", ("New.convert_from() creates an object of its class: decorate it with @classmethod",), "class Old(Config):\n    API_VERSION = 'a/v1'\n\n\nclass New(Config):\n    API_VERSION = 'a/v2'\n    OLDER = [Old]\n\n    def convert_from(self, older): ...\n\n\n"),
    Mistake("no conversion", "config = New", ("New lists older versions in OLDER but has no convert_from",), "class Old(Config):\n    API_VERSION = 'a/v1'\n\n\nclass New(Config):\n    API_VERSION = 'a/v2'\n    OLDER = [Old]\n\n\n"),
    Mistake("two kinds of one name", "config = [A, B]", ("A and B have the same KIND and API_VERSION",), "class A(Config):\n    a: int = 1\n\n\nclass B(Config):\n    b: int = 1\n\n\n"),
    cls("an __init__ that is async", "async def __init__(self): ...", "Acme.__init__() is async and cannot be awaited: move code with `await` to start()"),
    cls("a property", "@property\ndef devices(self): return []", "Acme.devices is property, not a method: write `def devices(self)`"),
    cls("no self", "def devices(): return []", "Acme.devices() cannot be called as devices(): is `self` missing?"),
    cls("no self, and a claim", "prepare = lambda claim: []", "Acme.prepare(claim) cannot be called as prepare(claim): is `self` missing?"),
    cls("a static method with self", "@staticmethod\ndef prepare(self, claim): return []", "Acme.prepare is staticmethod, not a method: write `def prepare(self, claim)`"),
    cls("a generator", "def devices(self):\n    yield Device('d-0')", "Acme.devices is a generator: return a list in place of each `yield`"),
    cls("an asynchronous generator", "async def prepare(self, claim):\n    yield 1", "Acme.prepare is a generator: return a list"),
    cls("a method of the framework", "hardware_lock = None", "Acme.hardware_lock is a method of the framework"),
    Mistake("a plain class", "config = C", ("Acme.config is <class 'driver_acme_driver.C'>: set it to a subclass of Config",), "class C:\n    port: int = 1\n\n\n"),
    config("a kind with a type", "KIND: str = 'Acme'", "AcmeConfig.KIND has a type, so it would become a parameter, but Config itself uses this name: write it without a type"),
    config("a parameter named check", "check: bool = True", "AcmeConfig.check has a type", 'msgspec.field(name="check")'),
    config("a misspelled type", "speed: Quantty = None", "name 'Quantty' is not defined, did you mean 'Quantity'?"),
    options("an option without a type", "port = 80", "AcmeOptions.port has no type, so it cannot be set: write `port: int = ...`"),
    cls("an option of another name", "option = {'port': 80}", "Acme.option is never used, did you mean `options`?"),
    Mistake("options without defaults", "options = O()", ("O.__init__() missing 1 required positional argument: 'port'",), "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass O:\n    port: int\n\n\n"),
    Mistake("a union of objects", "config = C", ("declare each as class Name(Config, tag=True)",), "class A(Config):\n    a: int = 1\n\n\nclass B(Config):\n    b: int = 1\n\n\nclass C(Config):\n    of: A | B = A()\n\n\n"),
]  # fmt: skip
DEVICES = [
    devices("raises", "[{}['bus']]", "the driver's devices raised KeyError: 'bus'"),
    devices("a misspelled attribute of self", "self.hots.pci()", "did you mean 'host'?"),
    devices("a misspelled keyword", "[Device('d-0', attribute={})]", "unexpected keyword argument 'attribute'"),
    devices("a misspelled variable", "[Devize('d-0')]", "name 'Devize' is not defined, did you mean 'Device'?"),
    devices_result("None", "None", "devices() returned NoneType, not a list of Device: is a `return` missing?"),
    devices_result("a dict", "{'d-0': Device('d-0')}", "devices() returned dict, not a list of Device: return its values"),
    devices_result("text", "'d-0'", "devices() returned str, not a list of Device"),
    devices_result("a generator expression", "(Device(n) for n in 'ab')", "devices returned generator: it must be `def` or `async def` and return a list"),
    devices_result("a coroutine", "super().devices()", "devices returned coroutine: it must be `def` or `async def` and return a list"),
    devices_result("one", "Device('d-0')", "put it into a list, `[device]`"),
    devices("no await", "[*super().devices()]", "Value after * must be an iterable, not coroutine: is an `await` missing?"),
    cls("an await of a list", "async def devices(self):\n    return await self._found()  # here\n\ndef _found(self): return []", "object list can't be used in 'await' expression: remove the `await`"),
    cls("a nested event loop", "async def devices(self):\n    import asyncio\n    return asyncio.run(super().devices())  # here", "asyncio.run() cannot be called from a running event loop: `await` it"),
    devices("no loop", "[__import__('asyncio').get_running_loop()]", "no running event loop: make it `async def`, plain methods run in threads"),
    devices("a missing import of a name", "[Hook()]", "name 'Hook' is not defined: write `from dra_kubeletplugin import Hook`"),
    devices("a missing import of a module", "[os.getpid()]", "name 'os' is not defined: write `import os`"),
]  # fmt: skip
UNPUBLISHED = [
    devices_result("names", "['b']", "devices[0]", "str, not Device"),
    devices_result("two devices with one name", "[Device('D_0'), Device('D_0')]", "devices[1]", "its name 'D_0' is the name of an earlier item of the list: names must be unique"),
    devices_result("a coroutine in a list", "[None]", "devices[0]", "NoneType, not Device"),
    devices_result("an object", "[Device('d-0', attributes={'x': object()})]", "d-0", "attributes['x'] is <object object>: use str, int"),
    devices_result("bytes", "[Device('d-0', attributes={'x': b'ab'})]", "attributes['x'] is b'ab'", "value.hex()"),
    devices_result("a float", "[Device('d-0', attributes={'x': 1.5})]", "attributes['x'] is 1.5", "smaller unit"),
    devices_result("an unknown value", "[Device('d-0', attributes={'x': None})]", "leave out attributes without a value"),
    devices_result("a name of 40 letters", "[Device('d-0', attributes={'x' * 40: 1})]", f"attributes[{'x' * 40}]: the name is too long", "32 bytes"),
    devices_result("40 attributes", "[Device('d-0', attributes={f'a{i}': i for i in range(40)})]", "must not exceed 32"),
    devices_result("upper case", "[Device('D_0')]", "D_0", "name:", "lowercase RFC 1123 label"),
    devices_result("a number as a name", "[Device(0)]", "devices[0]", "its name is int, not text"),
    devices_result("an invalid amount", "[Device('d-0', capacity={'memory': '80GB'})]", "capacity['memory']: '80GB' is not a quantity", "did you mean '80G'?"),
    devices_result("an amount below zero", "[Device('d-0', capacity={'memory': -5})]", "capacity['memory']: -5 is below zero"),
    devices_result("an effect", "[Device('d-0', taints=[Taint(key='a', effect='NoSchedul')])]", "taints[0].effect", '"NoSchedule"'),
    devices_result("groups in a list", "[Device('d-0', compatibility_groups=['x'])]", "compatibility_groups is list: use a mapping of counter sets to lists of groups"),
    devices_result("a version of four numbers", "[Device('d-0', attributes={'x': Version('6.19.14.31400000')})]", "attributes['x']: '6.19.14.31400000'", "use Version.coerce(), or publish it as text"),
    devices_result("a policy without a minimum", "[Device('d-0', capacity={'m': Capacity(8, RequestPolicy(default=1, step=1))})]", "capacity['m']: a RequestPolicy with max or step needs min"),
    pools("a counter set", "[Device('d-0', consumes_counters={'crad': {'memory': '1Gi'}})], [CounterSet('card', {'memory': '2Gi'})]", "d-0", "counter set 'crad', which its pool does not have, did you mean 'card'?"),
    pools("a counter", "[Device('d-0', consumes_counters={'card': {'memroy': '1Gi'}})], [CounterSet('card', {'memory': '2Gi'})]", "counter set 'card' has no counter 'memroy', did you mean 'memory'?"),
    cls("no counter sets", "def devices(self):\n    return [Device('d-0', consumes_counters={'card': {'memory': '1Gi'}})]", "declare it with Pool(counter_sets=[CounterSet(...)]) in pools()"),
]  # fmt: skip
PREPARE = [
    prepare("raises", "[{}['port']]", "DRIVER_FAILED: the driver's prepare raised KeyError: 'port'"),
    prepare("SystemExit", "[__import__('sys').exit(3)]", "the driver's prepare raised SystemExit: 3"),
    prepare("a keyword", "[d.prepared(ContainerEdits(envs={})) for d in claim.devices]", "unexpected keyword argument 'envs'"),
    prepare("a keyword of a method", "[d.prepared(edit=None) for d in claim.devices]", "unexpected keyword argument 'edit'"),
    prepare("edits", "[d.prepared(ContainerEdits(env=['A=1'])) for d in claim.devices]", "env must be a mapping of names to values, not list"),
    prepare_result("None", "None", "prepare returned NoneType, not a list of PreparedDevice: is a `return` missing?"),
    prepare_result("one", "claim.devices[0].prepared()", "put it into a list, `[device.prepared()]`"),
    prepare_result("devices", "claim.devices", "a list with AllocatedDevice, not PreparedDevice: return device.prepared(...)"),
    prepare_result("nothing", "[]", "prepare returned no entry for device d-0"),
    undo("a name", "await claim.on_undo('close', port=1)", "on_undo() got 'close': pass a method of the driver, such as self.unload"),
    undo("a lambda", "await claim.on_undo(lambda claim, port: None, port=1)", "<lambda>: pass a method of the driver, such as self.unload"),
    undo("a parameter", "await claim.on_undo(self.close, prot=1)", "Acme.close has no parameter 'prot', did you mean 'port'?"),
    undo("no near parameter", "await claim.on_undo(self.close, a=1)", "has no parameter 'a': its parameters are port"),
    cls("an await", "async def prepare(self, claim):\n    claim.on_undo(self.close)  # here\n    return [d.prepared() for d in claim.devices]\n\nasync def close(self, claim): ...", "claim.on_undo(self.close) was not awaited: write `await` before it"),
    prepare_result("a missing node", "[d.prepared(ContainerEdits(device_nodes=['/dev/acme9'])) for d in claim.devices]", "HOST_PATH_MISSING: claim", "/dev/acme9 of device d-0 is not on the host: install what creates it on the host, such as its kernel driver, or correct the path"),
    prepare_result("a mount of a missing path", "[d.prepared(ContainerEdits(mounts=[Mount(host_path='/opt/acme-x', container_path='/x')])) for d in claim.devices]", "/opt/acme-x of device d-0 is not on the host: install what creates it"),
]  # fmt: skip
PARAMETERS = [
    claim_parameters("no near name", "speed: int = 1\nlinks: int = 2", {"zzzzzz": 1}, "parameters: unknown field 'zzzzzz': there are links, speed"),
    claim_parameters("a misspelled field", "speed: int = 1", {"sped": 1}, "parameters: unknown field 'sped', did you mean 'speed'?"),
    claim_parameters("a misspelled kind", "KIND = 'AcmeConfig'", {"kind": "AcmeConfg"}, "parameters.kind: 'AcmeConfg' is not known to acme.example.com, did you mean 'AcmeConfig'?"),
    claim_parameters("an earlier kind", "KIND = 'CardConfig'", {"kind": "Settings"}, "parameters.kind: 'Settings' is not known to acme.example.com, which knows - CardConfig; to accept an older version, keep its class and list it in OLDER"),
    claim_parameters("an earlier version", "API_VERSION = 'acme.example.com/v2'", {"apiVersion": "acme.example.com/v1"}, "parameters.apiVersion: 'acme.example.com/v1' is not known to acme.example.com, which knows acme.example.com/v2 AcmeConfig"),
    claim_parameters("an assertion", "speed: int = 1\ndef check(self):\n    assert self.speed < 3  # here", {"speed": 4}, "the checks of AcmeConfig raised AssertionError", "raise ValueError(...) to reject parameters"),
    claim_parameters("a check that returns a value", "speed: int = 1\ndef check(self):  # here\n    return 'too slow'", {"speed": 4}, "AcmeConfig.check() returned 'too slow'", "raise ValueError(...)"),
    claim_parameters("a check of a missing field", "speed: int = 1\ndef check(self):\n    return self.sped > 1  # here", {"speed": 4}, "the checks of AcmeConfig raised AttributeError", "did you mean 'speed'?"),
    claim_parameters("a check that fails", "speed: int = 1\ndef check(self):\n    {}[self.speed]  # here", {"speed": 4}, "the checks of AcmeConfig raised KeyError: 4"),
]  # fmt: skip
HEALTH = [
    health("None", "None", "health() returned NoneType: it must return a mapping of names to Health"),
    health("a list", "[Health(True)]", "health() returned list"),
    health("text", "{'d-0': 'ok'}", "health() returned str → str"),
    cls("raises", "def health(self):\n    raise OSError('no telemetry')  # here", "the driver's health raised OSError: no telemetry"),
    cls("an unknown device", "def health(self):\n    return {'d_0': Health(False)}", "health() returned d_0", "did you mean 'd-0'?"),
    cls("a taint", "def health(self):\n    return {'d-0': Health(False, 'hot', [Taint(key='a', effect='No')])}", "a taint that health() returned for d-0 is invalid", '"NoSchedule"'),
]  # fmt: skip
