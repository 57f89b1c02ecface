"""Renders the manifests of a driver, as kustomize components and as a Helm chart, from the folder ``source``.

The source consists of ``parameters.yaml`` and of the templates of the Helm chart in ``templates``.

1. :mod:`.source_reader` reads the source. A :class:`~.source_reader.Manifest` is one object. Each line of a manifest lists the features
   that must be on or off for this line.
2. :mod:`.helm` renders the chart: the unchanged templates, the default values and the schema of the values.
3. :mod:`.kustomize` renders the same objects with and without each feature. The difference becomes the component of the feature:
   :mod:`.patches` computes the patch, and :mod:`.replacements` finds the places of parameters.
4. :mod:`.values` reads the ``values.yaml`` of a driver. :mod:`.values_validation` finds errors in the values. It calls
   :mod:`.pod_values_validation` for the fields of pods, and :mod:`.option_validation` for the options that the driver defines.
5. :mod:`.driver_folder` renders the driver's kustomization from the values. :mod:`.pod_fields` sets the fields of pods.
6. The value ``options`` becomes a ConfigMap: ``templates/options.yaml`` in the chart, a generator in the kustomization. The pods read it
   with ``envFrom``. In the process, :mod:`dra_kubeletplugin.driver.options` reads the variables into ``Driver.options``.
7. :mod:`.writer` writes the files. ``dra deploy --shared-dir`` writes those of steps 2 and 3, and those of :mod:`.monitoring`.
   ``dra deploy`` writes those of step 5.
"""
