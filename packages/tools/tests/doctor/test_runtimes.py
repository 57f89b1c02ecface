"""`dra doctor` judges containerd by the files that its process reads, and by its version."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_tools.doctor import Finding, Level, runtimes
from dra_tools.doctor.processes import running

CDI = Path("/var/run/cdi")
OFF = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'
ON = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n'
CRI, OTHER_FOLDER = '"io.containerd.cri.v1.runtime"', 'cdi_spec_dirs = ["/opt/cdi"]'
V1, V2 = (
    b"\x7fELF path github.com/containerd/containerd/cmd/containerd",
    b"\x7fELF path github.com/containerd/containerd/v2/cmd/containerd",
)


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def start(root: Path, *arguments: str, binary: bytes = b"", pid: int = 7) -> None:
    """Adds a process of containerd to the host's file system."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "comm").write_text("containerd\n")
    (folder / "cmdline").write_bytes("\0".join(["/usr/bin/containerd", *arguments, ""]).encode())
    (folder / "exe").write_bytes(binary)


def look(root: Path) -> list[Finding]:
    return list(runtimes.look(root, CDI, list(running(root))))


@pytest.mark.parametrize("option", [("-c", "{}"), ("--config", "{}"), ("--config={}",), ("-c={}",)])
@pytest.mark.parametrize(("other", "level"), [(ON, Level.OK), (OFF, Level.FAILURE)])
def test_the_file_of_the_command_line_is_read(
    tmp_path: Path, option: tuple[str, ...], other: str, level: Level
) -> None:
    write(tmp_path, "/etc/containerd/config.toml", OFF if other is ON else ON)
    write(tmp_path, "/srv/own.toml", other)
    start(tmp_path, *(o.format("/srv/own.toml") for o in option))
    (found,) = look(tmp_path)
    assert found.level is level
    assert "containerd (/srv/own.toml, process 7)" in found.text


@pytest.mark.parametrize(
    ("binary", "config", "level"),
    [
        (V2, "version = 2\n", Level.OK), (V1, "version = 2\n", Level.FAILURE), (b"", "version = 2\n", Level.UNKNOWN),
        (V2, OFF, Level.FAILURE), (V1, ON, Level.OK), (b"", "version = 3\n", Level.OK), (V2, None, Level.OK), (V1, None, Level.FAILURE),
        (b"", None, Level.UNKNOWN), (V2, "version = 4\n", Level.OK), (V2, "", Level.OK), (b"", "version = 9\n", Level.UNKNOWN),
        (b"", 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false', Level.FAILURE),
    ],
)  # fmt: skip
def test_the_default_follows_the_version_of_the_binary(
    tmp_path: Path, binary: bytes, config: str | None, level: Level
) -> None:
    if config is not None:
        write(tmp_path, "/etc/containerd/config.toml", config)
    start(tmp_path, binary=binary)
    (found,) = look(tmp_path)
    assert found.level is level, found


@pytest.mark.parametrize("imports", ['["/etc/containerd/conf.d/*.toml"]', '["conf.d/*.toml"]', '["conf.d/cdi.toml"]'])
@pytest.mark.parametrize("binary", [V1, V2])
def test_imported_files_are_read(tmp_path: Path, imports: str, binary: bytes) -> None:
    write(tmp_path, "/etc/containerd/config.toml", f"imports = {imports}\n{OFF}")
    write(tmp_path, "/etc/containerd/conf.d/cdi.toml", ON)
    start(tmp_path, binary=binary)
    (found,) = look(tmp_path)
    assert found.level is Level.OK


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, "/etc/containerd/config.toml", f'imports = ["other.toml"]\n{OFF}')
    write(tmp_path, "/etc/containerd/other.toml", f'imports = ["config.toml"]\n{ON}')
    start(tmp_path)
    assert [f.level for f in look(tmp_path)] == [Level.OK]


def test_a_containerd_without_cri_is_not_judged(tmp_path: Path) -> None:
    write(
        tmp_path,
        "/var/run/docker/containerd/containerd.toml",
        'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n',
    )
    write(tmp_path, "/etc/containerd/config.toml", ON)
    start(tmp_path, "--config", "/var/run/docker/containerd/containerd.toml", binary=V1)
    start(tmp_path, binary=V1, pid=8)
    assert sorted(f.level for f in look(tmp_path)) == [Level.OK, Level.UNKNOWN]


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    write(tmp_path, "/etc/containerd/config.toml", "version = \n")
    start(tmp_path)
    (found,) = look(tmp_path)
    assert found.level is Level.FAILURE and "/etc/containerd/config.toml is not valid TOML" in found.text


@pytest.mark.parametrize(
    ("path", "config", "level"),
    [
        ("/etc/containerd/config.toml", ON, Level.OK),
        ("/etc/containerd/config.toml", f"version = 3\n[plugins.{CRI}]\n{OTHER_FOLDER}", Level.WARNING),
        ("/etc/crio/crio.conf.d/10.conf", '[crio.runtime]\ncdi_spec_dirs = ["/run/cdi"]', Level.OK),
        ("/etc/crio/crio.conf.d/10.conf", f"[crio.runtime]\n{OTHER_FOLDER}", Level.WARNING),
    ],
)
def test_without_a_process_the_file_tells_where_the_runtime_reads_specs(
    tmp_path: Path, path: str, config: str, level: Level
) -> None:
    write(tmp_path, path, config)
    (found,) = look(tmp_path)
    assert (found.level, "drivers write to /var/run/cdi" in found.text) == (level, level is Level.WARNING), found
