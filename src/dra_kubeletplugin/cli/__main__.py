"""``python -m dra_kubeletplugin.cli`` is ``dra``."""

from . import main

raise SystemExit(main())
