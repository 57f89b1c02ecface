"""The usage of devices: which exist, which claims hold them, and their health.

One model for `dra top` and for the web pages.

It uses plain objects of resource.k8s.io and depends on neither scheduler nor plugin. :mod:`~.rows` is the model and
:mod:`~.usage` computes it. ``analysis/top`` sorts, filters and groups it; the plugin's page and `dra dev` serve it to
a browser.
"""
