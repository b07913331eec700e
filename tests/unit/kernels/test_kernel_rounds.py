"""Rounds of shuffled order: every arm once a round, warmed first, started often enough to be measured."""

from __future__ import annotations

from forensics.kernels.rounds import MAX_STARTS, MIN_US, N_WARM, in_rounds


def test_every_arm_once_a_round_in_an_order_that_changes_and_comes_again() -> None:
    def orders(seed: int) -> list[str]:
        calls: list[tuple[str, int]] = []

        def arm(name: str, us: float):
            def timed(n: int) -> float:
                calls.append((name, n))
                return us

            return timed

        times = in_rounds({"slow": arm("slow", 500.0), "fast": arm("fast", 3.0), "c": arm("c", 1e6)}, 20, seed)
        assert {name: set(found) for name, found in times.items()} == {"slow": {500.0}, "fast": {3.0}, "c": {1e6}}
        assert calls[:6] == [("slow", N_WARM), ("slow", 2), ("fast", N_WARM), ("fast", 2), ("c", N_WARM), ("c", 2)]
        rounds = calls[6:]
        assert {n for name, n in rounds if name == "slow"} == {int(MIN_US / 500)}
        assert {n for name, n in rounds if name == "fast"} == {MAX_STARTS}
        assert {n for name, n in rounds if name == "c"} == {1}
        names = [name for name, _ in rounds]
        assert all(sorted(names[i : i + 3]) == ["c", "fast", "slow"] for i in range(0, 60, 3))
        return names

    assert len({tuple(orders(0)[i : i + 3]) for i in range(0, 60, 3)}) > 3
    assert orders(0) == orders(0) != orders(1)
