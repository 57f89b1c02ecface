"""The devices of one driver: discovery, validation, health, and their publication as ResourceSlices.

These steps turn a device that ``Driver.devices()`` or ``Driver.pools()`` returns into a device in a ResourceSlice:

1. ``discovery.py`` calls ``pools()`` or ``devices()``, and passes the result to ``Inventory.update``.
2. ``inventory.py`` keeps the devices of all pools. ``update`` runs steps 3 to 5 for the new result, and wakes the publisher.
3. ``validation.py``: ``parse_pools`` checks the types of the lists and pools in the result.
4. ``pool_state.py``: ``updated_pool`` calls ``validate_device`` for each device, which returns a :class:`.DeviceEntry`: the JSON
   text and, for an invalid device, the fault. ``updated_pool`` adds the devices that vanished while a claim holds them, and returns a
   :class:`.PoolState`.
5. ``pool_state.py``: ``rendered_pool`` adds taints, removes fields that the API server drops, and keeps the published form in the
   PoolState.
6. ``slices/publisher.py`` decides when to synchronise with the API server, and handles failures.
7. ``slices/sync.py``: ``plan`` lists the existing slices, and runs steps 8 and 9 for the content of each pool. ``carry_out`` sends the
   writes. If the API server rejects a device, ``Inventory.reject`` records the rejection in the PoolState of step 4. The device is
   then not published.
8. ``slices/pack.py`` distributes the devices of a pool among slices.
9. ``slices/plan.py`` decides which slices are created, updated and deleted. For ``carry_out``, ``slices/slice_objects.py`` builds
   the objects, and ``KubeClient`` in ``kube/client.py`` sends them.

``Plugin`` in ``plugin/node.py`` and ``Controller`` in ``plugin/controller/controller.py`` create the objects of steps 1, 2 and 6. They
run steps 1 and 6 as tasks.
"""
