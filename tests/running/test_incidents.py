"""Incidents of a session: a bounded list, counts, and one word for each cause."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from nnadapter.engine import Incident, Incidents


def incident(stage: str = "run", device: str = "acme", kind: str = "RuntimeError", message: str = "x") -> Incident:
    return Incident(stage, device, 0, ("a",), kind, message, "the CPU ran it")


def test_each_cause_is_new_once():
    incidents = Incidents()
    assert incidents.add(incident()) and not incidents.add(incident(message="another"))
    assert incidents.add(incident(stage="compile")) and incidents.add(incident(kind="OSError"))
    assert incidents.counts == {("acme", "RuntimeError"): 3, ("acme", "OSError"): 1}


def test_stored_incidents_are_bounded_and_all_counted():
    incidents = Incidents()
    for number in range(5000):
        incidents.add(incident(kind=f"Error{number % 1000}", message=str(number)))
    assert len(incidents.newest) == 64 and incidents.newest[-1].message == "4999"
    assert sum(incidents.counts.values()) == 5000 and len(incidents.counts) <= 257


def test_concurrent_incidents_are_all_counted():
    incidents = Incidents()
    with ThreadPoolExecutor(4) as pool:
        new = list(pool.map(incidents.add, [incident()] * 400))
    assert sum(new) == 1 and incidents.counts == {("acme", "RuntimeError"): 400}
