"""The usage of devices: which devices exist, which claims hold them, and their health.

`dra top`, `dra simulate`, `dra explain` and the web pages use the same model. :mod:`~.rows` defines it: :class:`~.rows.DeviceUse`
defines free, held, blocked and unavailable. :mod:`~.usage` computes it from plain objects.
The package depends on neither scheduler nor plugin. :mod:`~.arranging` sorts, filters and groups the rows.
The page of `dra dev` serves them to a browser.
"""
