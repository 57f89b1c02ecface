"""Renders the manifests of a driver from one source: as kustomize components, and as a Helm chart.

The folder ``source`` is the source: ``parameters.yaml``, and in ``templates`` the templates of the Helm chart.

1. :mod:`.source_reader` reads the source. A :class:`~.source_reader.Manifest` is one object; each of its lines has the features that
   it needs.
2. :mod:`.helm` writes the chart: the templates as they are, and the chart's default values and schema.
3. :mod:`.kustomize` renders the same objects with and without each feature. The difference is the component of the feature:
   :mod:`.patches` computes its patch, and :mod:`.replacements` finds its parameters.
4. :mod:`.values` reads the ``values.yaml`` of a driver. :mod:`.values_validation` finds its errors, :mod:`.pod_values_validation` those
   in the fields of pods, and :mod:`.driver_options` those in the options that the driver defines.
5. :mod:`.driver_folder` renders the driver's kustomization from the values. :mod:`.pod_fields` sets the fields of pods.
6. :mod:`.writer` writes the files of 2 and 3 with :mod:`.monitoring` (``dra deploy --shared-dir``), or of 5 (``dra deploy``).
"""
