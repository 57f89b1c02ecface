"""After an outage of the API server, the publishers of a fleet do not all retry at the same time."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.devices.slices import publisher


@pytest.mark.parametrize("failures", [1, 3, 6, 20])
def test_the_retries_of_a_fleet_are_spread_over_half_of_the_pause(failures: int) -> None:
    longest = min(30.0, 0.1 * 2**failures)
    pauses = sorted(publisher._pause(failures) for _ in range(2000))
    assert longest / 2 <= pauses[0]
    assert pauses[-1] <= longest
    # Each tenth of the time has at most twice its share of the attempts.
    tenth = (longest / 2) / 10
    shares = [
        sum(1 for p in pauses if start <= p - longest / 2 < start + tenth) for start in (i * tenth for i in range(10))
    ]
    assert max(shares) < 400
