"""The files of a running plugin have the modes that docs/security.md states."""

from __future__ import annotations

import re
from pathlib import Path

from dra_devkit.testing import node_with
from tests.helpers.drivers import make_toy_class

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()


async def test_each_file_of_a_plugin_has_the_mode_that_the_page_states() -> None:
    rows = re.findall(r"^\| `(<(?:kubelet|cdi) root>/[^`]+)` \| (\d{4}) \|", PAGE, re.MULTILINE)
    assert len(rows) == 5
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        (uid,) = (await node.leftovers())["records"]
        settings = node.settings
        placeholders = {
            "<kubelet root>": str(settings.kubelet_root),
            "<cdi root>": str(settings.cdi_root),
            "<driver>": settings.driver_name,
            "<claim>": uid,
        }
        for path, mode in rows:
            for placeholder, value in placeholders.items():
                path = path.replace(placeholder, value)
            assert f"{Path(path).stat().st_mode & 0o7777:04o}" == mode, path
