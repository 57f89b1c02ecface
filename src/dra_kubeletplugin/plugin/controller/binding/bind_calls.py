"""Creates the claim objects that the driver's ``bind`` and ``unbind`` get, and calls these methods."""

from __future__ import annotations

from dataclasses import replace

from ....base.telemetry.logs import operation_id
from ....claims.claim_fields import DeviceResult
from ....claims.device_status import DeviceStatusReporter
from ....devices.inventory import Inventory
from ....driver import AllocatedDevice, BoundClaim, Claim, Driver
from ....driver.calls import Calls
from ....driver.config.resolution import Resolver
from ....driver.encoded_claim import EncodedClaim
from ....errors import ClaimError, DraError, describe
from ....kube import KubeClient
from .claims import AllocatedClaim


class BindCalls:
    """Calls ``bind`` and ``unbind`` of one driver.

    Args:
        reporter: writes the statuses that the driver reports.
    """

    def __init__(
        self, driver: Driver, calls: Calls, client: KubeClient, inventory: Inventory, reporter: DeviceStatusReporter
    ) -> None:
        self._driver = driver
        self._calls = calls
        self._client = client
        self._inventory = inventory
        self._reporter = reporter
        self._resolver = Resolver(driver, reporter.driver)

    async def bind(self, wanted: AllocatedClaim) -> None:
        """Calls ``bind``.

        Raises:
            ConfigError: the driver does not accept the parameters.
            ClaimError: the claim is malformed.
            ApiError: a request failed.
            DraError: the driver's error.
        """
        await self._calls(self._driver.bind, await self._driver_claim(wanted))

    async def unbind(self, claim: BoundClaim) -> None:
        """Calls ``unbind``. Raises :class:`DraError`."""
        await self._calls(self._driver.unbind, claim)

    async def _driver_claim(self, wanted: AllocatedClaim) -> Claim:
        """Creates the driver's claim object. Raises the same exceptions as :meth:`bind`, except the driver's errors."""
        claim = wanted.claim
        version = await self._client.dra_version()
        devices = await self._devices(wanted)
        return Claim(
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.uid,
            devices=devices,
            reserved_for=wanted.reserved_for,
            object=EncodedClaim(wanted.encoded, version),  # type: ignore[arg-type]  # decoded when the driver reads it
            operation=operation_id(),
            node=wanted.node,
            _status=self._reporter.of(claim),
        )

    async def _devices(self, wanted: AllocatedClaim) -> tuple[AllocatedDevice, ...]:
        devices = [self._device(wanted, r) for r in wanted.waiting]
        requests = [(d.request, d.published) for d in devices]
        resolved = await self._resolver.resolve(wanted.config, requests, of_whole_claim=False)
        out = []
        for device, found in zip(devices, resolved, strict=False):  # an error is the last item
            if isinstance(found, DraError):
                raise found
            config, source = found
            out.append(replace(device, config=config, config_source=source))
        return tuple(out)

    def _device(self, wanted: AllocatedClaim, result: DeviceResult) -> AllocatedDevice:
        try:
            consumed = result.consumed()
        except ValueError as e:
            raise ClaimError(
                f"claim {wanted.claim}, device {result.device}: consumed capacity: {describe(e)}"
            ) from None
        return result.allocated(self._inventory.get(result.device, result.pool), consumed=consumed)
