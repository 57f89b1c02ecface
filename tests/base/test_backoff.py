from __future__ import annotations

import pytest

from dra_kubeletplugin.base.backoff import Backoff


def test_the_delay_doubles_up_to_the_cap_and_a_success_resets_it() -> None:
    backoff = Backoff(2.0, 15.0)
    assert backoff.delay() == 0.0
    assert [backoff.next() for _ in range(5)] == [2.0, 4.0, 8.0, 15.0, 15.0]
    assert backoff.delay() == 15.0
    backoff.reset()
    assert (backoff.delay(), backoff.next()) == (0.0, 2.0)


def test_failures_of_an_earlier_process_count_and_any_number_of_failures_has_a_delay() -> None:
    assert Backoff(2.0, 300.0, failures=3).delay() == 8.0
    assert Backoff(2.0, 300.0, failures=10**9).delay() == 300.0
    assert Backoff(2.0, 300.0, failures=-2).delay() == 0.0


@pytest.mark.parametrize("failures", [1, 3, 6, 20])
def test_the_retries_of_a_fleet_are_spread_over_the_share_of_the_jitter(failures: int) -> None:
    longest = min(30.0, 0.1 * 2**failures)
    delays = sorted(Backoff(0.2, 30.0, jitter=0.5, failures=failures).delay() for _ in range(2000))
    assert longest / 2 <= delays[0]
    assert delays[-1] <= longest
    # Each tenth of the time has at most twice its share of the attempts.
    tenth = (longest / 2) / 10
    shares = [
        sum(1 for d in delays if start <= d - longest / 2 < start + tenth) for start in (i * tenth for i in range(10))
    ]
    assert max(shares) < 400
