"""The devices of one driver: discovery, validation, health, and their publication as ResourceSlices.

A device gets from ``Driver.pools()`` into a ResourceSlice in these steps. Each step is one module:

1. ``discovery.py`` calls ``pools()`` or ``devices()``, and passes the result to ``Inventory.update``.
2. ``inventory.py`` keeps the devices of all pools. ``update`` passes a new result through steps 3 to 5, and wakes the publisher.
3. ``validation.py`` checks the types and names in the result. It turns each device into a :class:`DeviceEntry`: JSON text, or a fault.
4. ``pool_state.py`` combines the entries of a pool with the devices that vanished in use, into a :class:`PoolState`.
5. ``pool_content.py`` adds taints and removes fields that the API server drops. The result is a :class:`PoolContent`.
6. ``slices/publisher.py`` decides when to synchronise with the API server, and handles failures.
7. ``slices/sync.py``: ``plan`` lists the existing slices, and passes the content of each pool through steps 8 and 9. ``carry_out``
   sends the writes. A device that the API server rejects goes back to step 4, which leaves it out.
8. ``slices/pack.py`` distributes the devices of a pool among slices.
9. ``slices/plan.py`` decides which slices are created, updated and deleted. ``slices/slice_objects.py`` builds the objects.

``Plugin`` in ``plugin/node.py`` and ``Controller`` in ``plugin/controller/controller.py`` create the objects of steps 1, 2 and 6, and
run steps 1 and 6 as tasks.
"""
