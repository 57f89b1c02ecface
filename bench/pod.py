"""``dra`` as in a pod whose service account is in a folder of ours: ``python -m bench.pod FOLDER ARGUMENT...``."""

from __future__ import annotations

import sys
from pathlib import Path

from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube import config

if __name__ == "__main__":
    config.SERVICE_ACCOUNT = Path(sys.argv[1])
    raise SystemExit(main(sys.argv[2:]))
