"""The devices of one driver: discovery, validation, health, and their publication as ResourceSlices.

These steps, one module each, turn a device that ``Driver.pools()`` returns into a device in a ResourceSlice:

1. ``discovery.py`` calls ``pools()`` or ``devices()``, and passes the result to ``Inventory.update``.
2. ``inventory.py`` keeps the devices of all pools. ``update`` runs steps 3 to 5 for the new result, and wakes the publisher.
3. ``validation.py`` checks the types and names in the result. It turns each device into a :class:`.DeviceEntry`: JSON text, or a fault.
4. ``pool_state.py`` combines the entries of a pool with the devices that vanished while a claim holds them, into a :class:`.PoolState`.
5. ``pool_state.py`` then adds taints, removes fields that the API server drops, and keeps the published form in the same object.
6. ``slices/publisher.py`` decides when to synchronise with the API server, and handles failures.
7. ``slices/sync.py``: ``plan`` lists the existing slices, and runs steps 8 and 9 for the content of each pool. ``carry_out`` sends the
   writes. If the API server rejects a device, ``Inventory.reject`` records the rejection in the PoolState of step 4. The device is
   then not published.
8. ``slices/pack.py`` distributes the devices of a pool among slices.
9. ``slices/plan.py`` decides which slices are created, updated and deleted. ``slices/slice_objects.py`` builds the objects.

``Plugin`` in ``plugin/node.py`` and ``Controller`` in ``plugin/controller/controller.py`` create the objects of steps 1, 2 and 6. They
run steps 1 and 6 as tasks.
"""
