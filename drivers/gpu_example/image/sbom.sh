#!/bin/sh
# Lists the contents of an image, with licences, as CycloneDX 1.7: sbom.sh PYPROJECT ENVIRONMENT FOLDER BASE
# Runs while the image is built. Lists the Python environment, the interpreter of the base image, and the Debian packages.
set -eu
pyproject=$1 python=$2/bin/python folder=$3 base=$4
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

cyclonedx-py environment --sv 1.7 --output-reproducible --gather-license-texts --pyproject "$pyproject" -o "$parts/environment.cdx.json" "$python"
debsbom generate -t cdx --cdx-schema-version 1.7 --with-licenses --distro-name "$base" --distro-version "$(cat /etc/debian_version)" -o "$parts/debian"
# Neither tool lists the interpreter of python:3.13-slim, because it is not a Debian package.
"$python" - >"$parts/interpreter.cdx.json" <<'PYTHON'
import json
import platform

version = platform.python_version()
component = {
    "type": "platform",
    "bom-ref": f"cpython@{version}",
    "name": "cpython",
    "version": version,
    "purl": f"pkg:generic/python@{version}",
    "cpe": f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*",
    "licenses": [{"license": {"id": "PSF-2.0"}}],
}
print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.7", "version": 1, "metadata": {"component": component}}))
PYTHON

mkdir -p "$folder"
debsbom merge -t cdx --cdx-schema-version 1.7 --distro-name image --distro-summary "contents of the image" -o "$folder/image" "$parts"/*.cdx.json
