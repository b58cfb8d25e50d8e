"""Turns what the controller says into text. Pure: a dict in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firepool_ray.core.model import SOURCES

Row = Sequence[str]
#: Warm workers that went, as shown by ``status``; ``explain`` shows them all.
SHOWN_LET_GO = 5


def status(described: Mapping[str, Any]) -> str:
    """The page of ``firepool status``."""
    parts = [
        _head(described),
        _titled("Lanes", _lanes(described["lanes"])),
        _titled("Workers", _workers(described["workers"])),
        _titled("Queues", _queues(described["queues"])),
        _titled("Budgets for idle workers", _budgets(described["queues"])),
        _titled("Starts", _starts(described)),
        _titled("Waiting", _waiting(described["waiting"])),
        _titled("Let go (newest last)", _let_go(described.get("let_go", ())[-SHOWN_LET_GO:])),
        _titled("Kubernetes", _kubernetes(described.get("kubernetes"))),
        _titled("Trouble", _trouble(described)),
    ]
    return "\n\n".join(part for part in parts if part)


def explanation(explained: Mapping[str, Any]) -> str:
    """The page of ``firepool explain``."""
    parts = [
        str(explained["message"]),
        _titled("Waiting", _waiting(explained.get("waiting", ()))),
        _titled("Workers", _leases(explained.get("leases", ()))),
        _titled("Let go (newest last)", _let_go(explained.get("let_go", ()))),
        _titled("Jobs (newest last)", _records(explained.get("records", ()))),
    ]
    candidates = explained.get("candidates", ())
    if candidates:
        parts.append("Known: " + ", ".join(candidates))
    return "\n\n".join(part for part in parts if part)


def duration(seconds: float | None) -> str:
    """A time span for people: three figures and a unit."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h"


def amount(value: float | None) -> str:
    """Units; "-" where nothing is said."""
    return "-" if value is None else f"{value:g}"


def table(header: Row, rows: Iterable[Row]) -> str:
    """Columns as wide as they need to be; numbers to the right."""
    body = [[str(cell) for cell in row] for row in rows]
    if not body:
        return ""
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
    numeric = [all(_is_numeric(row[i]) for row in body) for i in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [header, *body]
    )
    return "\n".join(lines)


def _is_numeric(cell: str) -> bool:
    return cell == "-" or cell[:1].isdigit()


def _titled(title: str, text: str) -> str:
    return f"{title}\n{_indent(text)}" if text else ""


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _head(described: Mapping[str, Any]) -> str:
    units = described["units"]
    bounds = [
        f"{name} {amount(units[key])}"
        for name, key in (("at most", "max"), ("idle cap", "idle_cap"))
        if units.get(key) is not None
    ]
    kind = "embedded pool" if described["embedded"] else "pool"
    return (
        f"{kind}, epoch {described['epoch']}, up {duration(described['uptime_s'])}: "
        f"{amount(units['reserved'])} units reserved, {amount(units['held'])} held, "
        f"{amount(units['idle'])} of them idle"
        + (f" ({', '.join(bounds)})" if bounds else "")
        + f"; {_counted(len(described['clients']), 'client')}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> str:
    header = ("lane", "profile", "node", "gpus", "state", "slot", "worker", "caller", "age")
    rows = []
    for lane in lanes:
        place: Row = (
            lane["lane"],
            lane["profile"],
            lane.get("pod") or str(lane["node"])[:8] or "-",
            ",".join(lane["gpu_ids"]) or amount(lane["gpus"]),
            lane["state"],
        )
        if not lane["workers"]:
            rows.append((*place, "-", "-", "-", duration(lane["age_s"])))
        for worker in lane["workers"]:
            rows.append(
                (
                    *place,
                    str(worker["slot"]),
                    worker["state"],
                    worker["caller"] or "-",
                    duration(worker["age_s"]),
                )
            )
            place = [""] * len(place)
    return table(header, rows)


def _kubernetes(said: Mapping[str, Any] | None) -> str:
    """Pods of the RayCluster, and what is wrong; "" for a pool without."""
    if said is None:
        return ""
    pods = table(
        ("pod", "group", "host", "gpus", "phase", "state"),
        (
            (p["name"], p["group"], p["host"], p["gpus"] or "-", p["phase"], _pod_state(p))
            for p in said["pods"]
        ),
    )
    wrong = [f"cannot be read: {said['problem']}"] if said["problem"] else []
    wrong += [f"queue {name} goes by the pool file: {why}" for name, why in said["queues"].items()]
    return "\n".join(part for part in (pods, *wrong, *said["shortages"]) if part)


def _pod_state(pod: Mapping[str, Any]) -> str:
    if pod["leaving"]:
        return "leaving"
    return pod["trouble"] or ("ready" if pod["ready"] else "coming")


def _workers(workers: Mapping[str, Mapping[str, int]]) -> str:
    counts = [
        "  ".join(f"{name} {count}" for name, count in workers[group].items())
        for group in ("by_state", "by_caller")
    ]
    return "\n".join(line for line in counts if line)


def _queues(queues: Sequence[Mapping[str, Any]]) -> str:
    header = ("queue", "quota", "limit", "weight", "held", "idle", "demand")
    return table(
        header, ([q["queue"], *(amount(q[column]) for column in header[1:])] for q in queues)
    )


def _budgets(queues: Sequence[Mapping[str, Any]]) -> str:
    columns = ("budget", "idle", "need", "within_quota", "beyond_quota", "running", "demand", "cap")
    header = ("queue", "gpus of", *(column.replace("_", " ") for column in columns))
    rows = [
        (q["queue"], row["gpu_type"], *(amount(row[column]) for column in columns))
        for q in queues
        for row in q.get("budgets", ())
    ]
    return table(header, rows)


def _let_go(rows: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("worker", "caller", "ago", "was idle", "why"),
        (
            (r["worker"], r["caller"], duration(r["ago_s"]), duration(r["idle_s"]), r["why"])
            for r in rows
        ),
    )


def _starts(described: Mapping[str, Any]) -> str:
    rows = []
    for source in SOURCES:
        latency = described["latency_s"].get(source, {})
        jobs = described["sources"].get(source, 0)
        rows.append((source, str(jobs), *(duration(latency.get(p)) for p in ("p50", "p90", "p99"))))
    return table(("source", "jobs", "p50", "p90", "p99"), rows)


def _waiting(waiting: Sequence[Mapping[str, Any]]) -> str:
    header = ("caller", "profile", "priority", "jobs", "oldest", "why")
    return table(
        header,
        (
            (
                w["caller"],
                w["profile"],
                str(w["priority"]),
                str(w["count"]),
                duration(w["oldest_age_s"]),
                w["reason"],
            )
            for w in waiting
        ),
    )


def _trouble(described: Mapping[str, Any]) -> str:
    lines = [
        f"lane {lane['lane']} is quarantined: {lane['detail']}"
        for lane in described["lanes"]
        if lane["state"] == "quarantined"
    ]
    for profile in described["profiles"]:
        if profile["breaker"] == "open":
            lines.append(f"profile {profile['profile']} is not started: {profile['last_failure']}")
        elif profile["last_failure"]:
            lines.append(f"profile {profile['profile']} failed last: {profile['last_failure']}")
    return "\n".join(lines)


def _leases(leases: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ("worker", "lane", "node", "state", "age", "held for", "why"),
        (
            (
                w["worker"],
                w["lane"],
                w.get("pod") or str(w["node"])[:8],
                w["state"],
                duration(w["age_s"]),
                duration(w.get("held_for_s")),
                w.get("why", ""),
            )
            for w in leases
        ),
    )


def _records(records: Sequence[Mapping[str, Any]]) -> str:
    header = ("job", "name", "caller", "source", "outcome", "waited", "bound", "ran", "worker")
    return table(header, (_record(record) for record in records))


def _record(record: Mapping[str, Any]) -> Row:
    submitted, received = record["submitted_at"], record["received_at"]
    started, ended = record["started_at"], record["ended_at"]
    return (
        record["job"],
        record["name"],
        record["caller"],
        record["source"],
        record["outcome"],
        duration(max(0.0, received - submitted)),
        duration(max(0.0, started - received) if started else None),
        duration(max(0.0, ended - started) if started and ended else None),
        record["worker"],
    )
