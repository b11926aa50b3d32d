"""Learning curves as numbers, for `charts` to arrange and for the page to draw.

All curves share three x axes: updates of the agent, episodes, and seconds since the start of the run. Runs that
differ in their seed are one curve, their mean, with a band from the lowest to the highest of them, at the ticks that
all of them have; the band of a single run is the Wilson interval of the success rates of its evaluations.
"""

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rspo_jax.report import runs, summary

AXES_AND_BANDS = {"kind", "tick", "updates", "episodes", "low", "high", "temperature", runs.ELAPSED}  # not curves themselves


def tables(groups: Sequence[runs.Group]) -> list[dict[str, Any]]:
    """The numbers of each group: {kind: {"x": {axis: [...]}, "y"/"low"/"high": {name: [...]}}}, null where none is."""
    return [{kind: _table(group, kind) for kind in kinds([group])} for group in groups]


def mean_band(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Mean, lowest and highest over runs [runs][ticks] at each tick; nan where a run has nan."""
    columns = list(zip(*rows, strict=True))
    bad = [any(math.isnan(value) for value in column) for column in columns]
    return (
        [math.nan if b else sum(column) / len(column) for b, column in zip(bad, columns, strict=True)],
        [math.nan if b else min(column) for b, column in zip(bad, columns, strict=True)],
        [math.nan if b else max(column) for b, column in zip(bad, columns, strict=True)],
    )


def kinds(groups: Sequence[runs.Group]) -> list[str]:
    """Every kind with numbers, in the order in which the runs logged them first."""
    kinds = (kind for group in groups for record in group.records for kind in record.lines if kind != "warning")
    return list(dict.fromkeys(kinds))


def names(groups: Sequence[runs.Group], kind: str) -> list[str]:
    """Every numeric metric of a kind, in the order in which the runs logged them first."""
    lines = (line for group in groups for record in group.records for line in record.lines.get(kind, ()))
    pairs = itertools.chain.from_iterable(line.items() for line in lines)
    return list(dict.fromkeys(name for name, value in pairs if name not in AXES_AND_BANDS and not isinstance(value, str)))


def _table(group: runs.Group, kind: str) -> dict[str, Any]:
    """One kind of one group. A run that has no line of this kind is left out of it."""
    members = [record for record in group.records if record.lines.get(kind)]
    by_tick = [{line["tick"]: line for line in record.lines[kind]} for record in members]
    ticks = sorted(set.intersection(*(set(lines) for lines in by_tick)))
    chosen = [[lines[tick] for tick in ticks] for lines in by_tick]
    episodes = [[_episodes(record, line) for line in lines] for record, lines in zip(members, chosen, strict=True)]
    seconds = [[float(line[runs.ELAPSED]) for line in lines] for lines in chosen]
    axes = {"updates": [_updates(line) for line in chosen[0]]}
    axes |= {name: _plain(mean_band(rows)[0]) for name, rows in (("episodes", episodes), ("seconds", seconds))}
    table = {"x": axes, "y": {}, "low": {}, "high": {}}
    for name in names([group], kind):
        having = [lines for lines in chosen if any(name in line for line in lines)]
        values = [[float(line.get(name, math.nan)) for line in lines] for lines in having]
        if not values:
            continue
        mean, low, high = mean_band(values)
        table["y"][name] = _plain(mean)
        if len(values) == 1:
            low, high = zip(*(_interval(kind, name, line) for line in having[0]), strict=True)
        if not all(math.isnan(value) for value in low):
            table["low"][name], table["high"][name] = _plain(low), _plain(high)
    return table


def _interval(kind: str, name: str, line: Mapping[str, Any]) -> tuple[float, float]:
    """Of a success rate of an evaluation; members of a training group play the same task, so their rate has none."""
    count = line.get(name.replace("success", "count", 1), 0)
    if not kind.startswith("eval") or name.split("/")[0] != "success" or name not in line:
        return math.nan, math.nan
    return summary.wilson(line[name] * count, count)


def _updates(line: Mapping[str, Any]) -> int:
    """Where a line is on the axis of updates. The explorer has updates of its own: in a loop of RSPO as many as the agent
    has after them, so its ticks put its curve beside the agent's instead of all of a loop on one spot."""
    return line["tick"] if line["kind"] == "explorer" else line.get("updates", line["tick"])


def _episodes(record: runs.Record, line: Mapping[str, Any]) -> float:
    """Episodes that were started until a line: its own count, or that of the last update before it."""
    if "episodes" in line:
        return float(line["episodes"])
    updates = [update for update in record.lines.get("update", ()) if "episodes" in update]
    position = bisect.bisect_right([update["tick"] for update in updates], line["tick"])
    return float(updates[position - 1]["episodes"]) if position else 0.0 if updates else math.nan


def _plain(values: Iterable[float]) -> list[float | None]:
    """Five significant digits are more than a screen shows; JSON has no nan."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
