"""``python -m dra_kubeletplugin`` is ``dra``."""

from .cli import main

raise SystemExit(main())
