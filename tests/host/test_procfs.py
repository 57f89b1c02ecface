"""The parser of the kernel's tables in ``/proc``."""

from __future__ import annotations

from pathlib import Path

from dra_devkit.hosts import described
from dra_kubeletplugin import Host
from dra_kubeletplugin.host import procfs

# The format of the kernel: numbers are aligned, a name can have two numbers, and a number can have two names.
DEVICES = """\
Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
195 nvidia
195 nvidiactl
231 infiniband_verbs
244 infiniband_verbs

Block devices:
  7 loop
195 other
259 blkext
"""


def test_names_and_numbers_are_returned_in_the_kernel_s_order(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text(DEVICES)
    characters, blocks = procfs.majors(tmp_path), procfs.majors(tmp_path, block=True)
    assert characters[:3] == [("mem", 1), ("/dev/vc/0", 4), ("tty", 4)]
    assert [number for name, number in characters if name == "infiniband_verbs"] == [231, 244]
    assert blocks == [("loop", 7), ("other", 195), ("blkext", 259)]


def test_a_machine_without_the_table_has_no_numbers(tmp_path: Path) -> None:
    assert procfs.majors(tmp_path) == []


def test_the_host_returns_the_major_number_of_a_name(tmp_path: Path) -> None:
    host = Host(described.build(tmp_path, {"functions": [], "proc": {"devices": DEVICES}}))
    assert (host.major("nvidiactl"), host.major("infiniband_verbs"), host.major("loop")) == (195, 231, None)
    assert (host.major("loop", block=True), host.major("nvidia", block=True)) == (7, None)


def test_the_table_of_this_machine_is_parsed() -> None:
    assert all(0 <= number < 4096 and name for name, number in procfs.majors(Path("/proc")))
