"""Names of the packages that are imported on first access, each package in a new process."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("dra_kubeletplugin", "errors"),
        ("dra_kubeletplugin", "resourceapi"),
        ("dra_devkit.testing", "events"),
        ("dra_tools", "snapshot"),
        ("dra_conformance", "profile"),
    ],
)
def test_modules_and_all_public_names_of_a_package_are_found_without_a_further_import(
    package: str, module: str
) -> None:
    script = f"""
import {package} as package
assert package.{module}.__name__ == "{package}.{module}"
for name in package.__all__:
    getattr(package, name)
assert set(package.__all__) <= set(dir(package))
try:
    package.nonsense
except AttributeError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"module '{package}' has no attribute 'nonsense'\n", done.stderr
