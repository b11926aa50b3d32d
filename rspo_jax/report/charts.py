"""Which charts a report has, in which order. What a run did not log is left out; what no chart here names comes last."""

import dataclasses
from collections.abc import Iterable, Sequence

from rspo_jax.report import curves, runs

COLOURS = 8  # that page.css defines for groups of runs; a ninth group takes the first again
DASHED = "5 3"


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
    scale: str = "number"  # "number", "percent", "rate" (always 0 to 100 %) or "log"
    group: int = -1  # the only group that is drawn; -1 for all


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    note: str
    charts: Sequence[Chart]
    folded: bool = False


def agent(title: str, name: str, scale: str = "number") -> Chart:
    """A metric of the agent's updates."""
    return Chart(title, [Line("update", name)], scale=scale)


def both(title: str, name: str, scale: str = "number") -> Chart:
    """A metric that the agent's updates and the explorer's have."""
    return Chart(title, [Line("update", name, "agent"), Line("explorer", name, "explorer", DASHED)], scale=scale)


def pair(title: str, solid: tuple[str, str], dashed: tuple[str, str], scale: str = "percent") -> Chart:
    """Two metrics of the agent's updates, as (name, label)."""
    return Chart(title, [Line("update", *solid), Line("update", *dashed, DASHED)], scale=scale)


ALWAYS = (
    Section(
        "Reward",
        "The explorer climbs the dense return, the agent is trained on the outcome. A dense return that rises while the "
        "outcome does not is a reward model being gamed.",
        [
            both("Outcome return", "outcome_return"),
            both("Dense return", "dense_return"),
            Chart("Outcome (y) against dense (x)", [Line("update", "dense_return"), Line("update", "outcome_return")], "path"),
        ],
    ),
    Section(
        "On and off policy",
        "The ratio is π / π_behavior; off policy, the clip is centred on π_old / π_behavior.",
        [
            pair("Mean ratio", ("ratio_mean", "on policy"), ("ratio_mean_off", "off policy"), "number"),
            agent("Largest ratio", "ratio_max", "log"),
            pair("Clipped tokens", ("clip_fraction_on", "on policy"), ("clip_fraction_off", "off policy")),
            pair(
                "Clip centre far from 1",
                ("center_below_epsilon", "below ε"),
                ("center_above_inverse_epsilon", "above 1/ε"),
            ),
            agent("Log-prob gap, sampler against trainer", "logp_gap"),
            both("Groups whose returns are all equal", "zero_variance_groups", "percent"),
        ],
    ),
    Section(
        "Exploration",
        "A state is a task and an observation.",
        [
            both("Entropy", "entropy"),
            both("KL to the reference", "kl_ref"),
            Chart(
                "KL of the explorer to the agent",
                [Line("harvest", "kl_from_agent", "harvest")],
            ),
            both("States seen at least twice", "identical_states"),
            both("Steps that start in such a state", "identical_share", "percent"),
        ],
    ),
    Section(
        "Episodes",
        "",
        [
            both("Steps", "steps"),
            both("Tokens of a response", "response_tokens"),
            both("Well-formed responses", "well_formed", "percent"),
            both("Admissible actions", "admissible", "percent"),
        ],
    ),
    Section(
        "Optimisation",
        "",
        [
            both("Loss", "loss"),
            both("Policy loss", "policy_loss"),
            both("Norm of the gradient", "grad_norm"),
            both("Skipped updates", "skipped_updates"),
        ],
    ),
)


def sections(groups: Sequence[runs.Group]) -> list[Section]:
    """The charts that these runs have numbers for."""
    logged = [(kind, name) for kind in curves.kinds(groups) for name in curves.names(groups, kind)]
    named = [*_success(groups), *ALWAYS, _times(groups), _endings(groups)]
    drawn = {(line.kind, line.name) for section in named for chart in section.charts for line in chart.lines}
    kept = []
    for section in [*named, _others(logged, drawn)]:
        charts = [dataclasses.replace(c, lines=[x for x in c.lines if (x.kind, x.name) in logged]) for c in section.charts]
        charts = [chart for chart in charts if len(chart.lines) >= (2 if chart.style == "path" else 1)]
        if charts:
            kept.append(dataclasses.replace(section, charts=charts))
    return kept


def eval_title(kind: str) -> str:
    """`eval/valid_unseen/0.4` -> `valid unseen, temperature 0.4`"""
    _, *parts = kind.split("/")
    if len(parts) == 2:
        parts[1] = "greedy" if parts[1] in ("0", "0.0") else f"temperature {parts[1]}"
    return ", ".join(part.replace("_", " ") for part in parts)


def _success(groups: Sequence[runs.Group]) -> list[Section]:
    evals = [kind for kind in curves.kinds(groups) if kind.startswith("eval")]
    overview = [both("In training", "success", "rate")]
    overview += [Chart(f"Evaluation, {eval_title(kind)}", [Line(kind, "success")], scale="rate") for kind in evals]
    note = "Share of all episodes that were started. "
    note += "Bands: the 95 % Wilson interval of one run's evaluations, or from the lowest to the highest of several seeds."
    answer = [Section("Success", note, overview)]
    for kind in [*evals, "update"]:
        names = [name for name in curves.names(groups, kind) if name.startswith("success/")]
        charts = [Chart(name.removeprefix("success/").replace("_", " "), [Line(kind, name)], scale="rate") for name in names]
        place = "in training" if kind == "update" else eval_title(kind)
        answer.append(Section(f"Success by type, {place}", "", charts, folded=kind != (evals or ["update"])[0]))
    return answer


def _times(groups: Sequence[runs.Group]) -> Section:
    charts = []
    for index, group in enumerate(groups):
        for kind, whose in (("update", "agent"), ("explorer", "explorer"), ("harvest", "harvest")):
            names = [name for name in curves.names([group], kind) if name.startswith("seconds/") and name != "seconds/total"]
            lines = [Line(kind, name, name.removeprefix("seconds/")) for name in names]
            charts.append(Chart(f"{group.name}, {whose}", lines, "stack", group=index))
    return Section("Seconds of each update, by phase", "", [*charts, both("All phases", "seconds/total")])


def _endings(groups: Sequence[runs.Group]) -> Section:
    names = [name for name in curves.names(groups, "update") if name.startswith(("termination/", "errors/"))]
    charts = [agent(name.replace("_", " ").replace("/", ": "), name) for name in names]
    return Section("How episodes end, number in each update", "", charts, folded=True)


def _others(logged: Iterable[tuple[str, str]], drawn: set[tuple[str, str]]) -> Section:
    """Other kinds of lines, and metrics that have no chart above. How many episodes a rate is of, the tables say."""
    rest = [pair for pair in logged if pair not in drawn and not pair[1].startswith("count")]
    charts = [Chart(f"{kind}, {name.replace('_', ' ')}", [Line(kind, name)]) for kind, name in rest]
    return Section("Everything else that was logged", "", charts, folded=True)
