"""Renders the manifests of a driver from one source: as kustomize components, and as a Helm chart.

The folder ``source`` is the source: ``parameters.yaml``, and in ``templates`` the templates of the Helm chart.

1. :mod:`.source` reads the source. A :class:`~.source.Manifest` is one object; each of its lines knows the features that it needs.
2. :mod:`.helm` writes the chart: the templates as they are, and the chart's default values and schema.
3. :mod:`.kustomize` renders the same objects with and without each feature. The difference is the component of the feature:
   :mod:`.patches` computes its patch, and :mod:`.replacements` finds its parameters.
4. :mod:`.values` reads and validates the ``values.yaml`` of a driver. :mod:`.driver` renders the driver's kustomization from the values.
5. :mod:`.writer` writes the files of 2 and 3 (``dra deploy --shared-dir``), or of 4 (``dra deploy``).
"""
