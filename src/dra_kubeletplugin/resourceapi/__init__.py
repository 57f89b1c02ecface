"""The objects of resource.k8s.io: types, names, quantities, versions, validation, conversion.

Source: the Kubernetes API of 1.36 and KEP-4381, 4815, 5004, 5007, 5055, 5075.
"""
