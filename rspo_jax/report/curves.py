"""Learning curves as data: which charts a report has, and the numbers that they draw.

All charts share three x axes: updates (the tick of a line), episodes and seconds since the start of the run. Runs that
differ in their seed are drawn as their mean, with a band from the lowest to the highest of them, at the ticks that all
of them have; a single run has a band only where it logged one (`low`, `high`: the Wilson interval of an evaluation).
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rspo_jax.report import runs

AXES = ("updates", "episodes", "seconds")
NOT_DRAWN = {"kind", "tick", "updates", "episodes", "low", "high", runs.ELAPSED}  # axes and bands of other curves


@dataclasses.dataclass(frozen=True)
class Line:
    """One metric of one kind of line; drawn once for each group of runs, in the group's colour."""

    kind: str
    name: str
    label: str = ""  # needed where a chart has several
    dash: str = ""  # SVG dash pattern, to tell the lines of a chart apart


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    lines: Sequence[Line]
    style: str = "lines"  # "lines", "stack" (areas, for one group) or "path" (the second line against the first)
    scale: str = "number"  # "number", "share" (0 to 100 %) or "log"
    group: int = -1  # the only group that is drawn; -1 for all


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    note: str
    charts: Sequence[Chart]
    folded: bool = False


def sections(groups: Sequence[runs.Group]) -> list[Section]:
    """The charts that these runs have numbers for: those that every report has, then everything else they logged."""
    known = [*_success(groups), *_fixed(), _times(groups)]
    drawn = {(line.kind, line.name) for section in known for chart in section.charts for line in chart.lines}
    logged = _logged(groups)
    known += _others(logged, drawn)
    kept = []
    for section in known:
        charts = [dataclasses.replace(chart, lines=[x for x in chart.lines if (x.kind, x.name) in logged]) for chart in section.charts]
        charts = [chart for chart in charts if len(chart.lines) >= (2 if chart.style == "path" else 1)]
        if charts:
            kept.append(dataclasses.replace(section, charts=charts))
    return kept


def tables(groups: Sequence[runs.Group]) -> list[dict[str, Any]]:
    """The numbers of each group: {kind: {"x": {axis: [...]}, "y"/"low"/"high": {name: [...]}}}, null where none is."""
    return [{kind: _table(group, kind) for kind in _kinds([group])} for group in groups]


def mean_band(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Mean, lowest and highest over runs [runs][ticks] at each tick; nan where a run has nan."""
    columns = list(zip(*rows, strict=True))
    bad = [any(math.isnan(value) for value in column) for column in columns]
    return (
        [math.nan if b else sum(column) / len(column) for b, column in zip(bad, columns, strict=True)],
        [math.nan if b else min(column) for b, column in zip(bad, columns, strict=True)],
        [math.nan if b else max(column) for b, column in zip(bad, columns, strict=True)],
    )


def _table(group: runs.Group, kind: str) -> dict[str, Any]:
    """One kind of one group. A run that has no line of this kind is left out of it."""
    members = [record for record in group.records if record.lines.get(kind)]
    by_tick = [{line["tick"]: line for line in record.lines[kind]} for record in members]
    ticks = sorted(set.intersection(*(set(lines) for lines in by_tick)))
    chosen = [[lines[tick] for tick in ticks] for lines in by_tick]
    episodes = [[_episodes(record, line) for line in lines] for record, lines in zip(members, chosen, strict=True)]
    seconds = [[float(line[runs.ELAPSED]) for line in lines] for lines in chosen]
    table = {
        "x": {"updates": ticks, "episodes": _plain(mean_band(episodes)[0]), "seconds": _plain(mean_band(seconds)[0])},
        "y": {},
        "low": {},
        "high": {},
    }
    for name in _names([group], kind):
        having = [lines for lines in chosen if any(name in line for line in lines)]
        values = [[float(line.get(name, math.nan)) for line in lines] for lines in having]
        if not values:
            continue
        mean, low, high = mean_band(values)
        if len(values) == 1 and name == "success":
            low, high = ([float(line.get(end, math.nan)) for line in having[0]] for end in ("low", "high"))
        table["y"][name] = _plain(mean)
        if low != high and not all(math.isnan(value) for value in low):
            table["low"][name], table["high"][name] = _plain(low), _plain(high)
    return table


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


def _kinds(groups: Sequence[runs.Group]) -> list[str]:
    """Every kind with numbers, in the order in which the runs logged them first."""
    kinds = (kind for group in groups for record in group.records for kind in record.lines if kind != "warning")
    return list(dict.fromkeys(kinds))


def _names(groups: Sequence[runs.Group], kind: str) -> list[str]:
    """Every numeric metric of a kind, in the order in which the runs logged them first."""
    lines = (line for group in groups for record in group.records for line in record.lines.get(kind, ()))
    pairs = itertools.chain.from_iterable(line.items() for line in lines)
    return list(dict.fromkeys(name for name, value in pairs if name not in NOT_DRAWN and not isinstance(value, str)))


def _logged(groups: Sequence[runs.Group]) -> dict[tuple[str, str], None]:
    return dict.fromkeys((kind, name) for kind in _kinds(groups) for name in _names(groups, kind))


def _success(groups: Sequence[runs.Group]) -> list[Section]:
    evals = [kind for kind in _kinds(groups) if kind.startswith("eval")]
    overview = [Chart("In training", [Line("update", "success")], scale="share")]
    overview += [Chart(_eval_title(kind), [Line(kind, "success")], scale="share") for kind in evals]
    answer = [Section("Success", "Share of all episodes that were started. Evaluations with their 95 % Wilson interval.", overview)]
    for kind in [*evals, "update"]:
        names = [name for name in _names(groups, kind) if name.startswith("success/")]
        charts = [Chart(name.removeprefix("success/").replace("_", " "), [Line(kind, name)], scale="share") for name in names]
        place = "in training" if kind == "update" else _eval_title(kind).lower()
        folded = kind != (evals or ["update"])[0]
        answer.append(Section(f"Success by type, {place}", "", charts, folded))
    return answer


def _eval_title(kind: str) -> str:
    """`eval/valid_unseen/0.4` -> `Evaluation, valid unseen, temperature 0.4`"""
    _, *parts = kind.split("/")
    if len(parts) == 2:
        parts[1] = "greedy" if float(parts[1]) == 0 else f"temperature {parts[1]}"
    return ", ".join(["Evaluation", *(part.replace("_", " ") for part in parts)])


def _fixed() -> list[Section]:
    def line(name: str, label: str = "", dash: str = "", kind: str = "update") -> Line:
        return Line(kind, name, label, dash)

    def both(title: str, name: str, scale: str = "number") -> Chart:
        return Chart(title, [line(name, "agent"), line(name, "explorer", "5 3", "explorer")], scale=scale)

    return [
        Section(
            "Reward",
            "The process reward is what the explorer climbs, the outcome reward what the agent is trained on. A dense "
            "return that rises while the outcome does not is a reward model being gamed.",
            [
                both("Outcome return", "outcome_return"),
                both("Dense return", "dense_return"),
                Chart("Outcome return (y) against dense return (x)", [line("dense_return"), line("outcome_return")], "path"),
            ],
        ),
        Section(
            "On and off policy",
            "The ratio is pi / pi_behavior; the centre of the clip off policy is pi_old / pi_behavior.",
            [
                Chart("Mean ratio", [line("ratio_mean")]),
                Chart("Largest ratio", [line("ratio_max")], scale="log"),
                Chart(
                    "Clipped tokens",
                    [line("clip_fraction_on", "on policy"), line("clip_fraction_off", "off policy", "5 3")],
                    scale="share",
                ),
                Chart(
                    "Centre outside of",
                    [
                        line("center_below_epsilon", "below epsilon"),
                        line("center_above_inverse_epsilon", "above 1/epsilon", "5 3"),
                    ],
                    scale="share",
                ),
                Chart("Log-prob gap, sampler against trainer", [line("logp_gap")]),
                both("Groups of equal returns", "zero_variance_groups"),
            ],
        ),
        Section(
            "Exploration",
            "",
            [
                both("Entropy", "entropy"),
                both("KL to the reference", "kl_ref"),
                Chart("KL of the explorer to the agent", [line("kl_from_agent", kind="explorer")]),
                both("States seen at least twice", "identical_states"),
                both("Steps in such a state", "identical_share", "share"),
            ],
        ),
        Section(
            "Episodes",
            "",
            [
                both("Steps", "steps"),
                both("Tokens in a response", "response_tokens"),
                both("Well-formed responses", "well_formed", "share"),
                both("Admissible actions", "admissible", "share"),
            ],
        ),
        Section(
            "Optimisation",
            "",
            [
                both("Loss", "loss"),
                both("Policy loss", "policy_loss"),
                both("Norm of the gradient", "grad_norm"),
            ],
        ),
    ]


def _times(groups: Sequence[runs.Group]) -> Section:
    charts = []
    for index, group in enumerate(groups):
        for kind, whose in (("update", "agent"), ("explorer", "explorer")):
            names = [name for name in _names([group], kind) if name.startswith("seconds/") and name != "seconds/total"]
            lines = [Line(kind, name, name.removeprefix("seconds/")) for name in names]
            charts.append(Chart(f"{group.name}, {whose}", lines, "stack", group=index))
    totals = Chart("Seconds of an update", [Line("update", "seconds/total"), Line("explorer", "seconds/total", "explorer", "5 3")])
    return Section("Seconds of each update, by phase", "", [*charts, totals])


def _others(logged: Iterable[tuple[str, str]], drawn: set[tuple[str, str]]) -> list[Section]:
    """What no chart above shows: other kinds of lines, and metrics of a known kind under names of their own."""
    rest: dict[str, list[Chart]] = {}
    for kind, name in logged:
        if (kind, name) not in drawn:
            rest.setdefault(kind, []).append(Chart(name.replace("_", " "), [Line(kind, name)]))
    return [Section(f"Other numbers of {kind}", "", charts, folded=True) for kind, charts in rest.items()]
