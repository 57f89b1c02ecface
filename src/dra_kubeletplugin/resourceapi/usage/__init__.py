"""The usage of devices: which devices exist, which claims hold them, and their health.

`dra top` and the web pages use the same model: :mod:`~.rows` defines it and :mod:`~.usage` computes it from plain
objects of resource.k8s.io. The package depends on neither scheduler nor plugin. ``analysis/top`` sorts, filters and
groups the rows; the plugin's page and `dra dev` serve them to a browser.
"""
