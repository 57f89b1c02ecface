"""What devices there are, who has them and how they are: one model for `dra top`, and for the pages of `dra dev` and a node's plugin.

It stands on plain objects of resource.k8s.io and knows neither scheduler nor plugin. :mod:`~.rows` is the model,
:mod:`~.tally` makes it, :mod:`~.arranging` sorts, filters and groups it, :mod:`~.page` serves it to a browser.
"""
