"""The outcome of one run in a few numbers: before and after on each panel, and where the time went."""

import pathlib
from typing import Any

from rspo_jax.report import jsonl, runs


def summarize(workdir: str) -> dict[str, Any]:
    """What `summary.json` holds, from metrics.jsonl.

    Returns:
        updates and episodes; by evaluation "<split>/<temperature>" the first, the last and the best line ("best" is an
        upward-biased statistic and named so); seconds by phase, summed over the run.
    """
    lines = jsonl.read(pathlib.Path(workdir) / runs.METRICS)
    updates = [line for line in lines if line["kind"] == "update"]
    evaluations: dict[str, list[dict]] = {}
    for line in lines:
        if line["kind"].startswith("eval/"):
            evaluations.setdefault(line["kind"].removeprefix("eval/"), []).append(line)
    seconds: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("seconds/") and name not in ("seconds/total", runs.ELAPSED):
                kind = line["kind"].split("/")[0]
                key = f"{kind}/{name.removeprefix('seconds/')}"
                seconds[key] = seconds.get(key, 0.0) + value
    return {
        "workdir": str(workdir), "updates": max((line["tick"] for line in updates), default=0),
        "episodes": max((line["episodes"] for line in updates), default=0),
        "seconds": {"elapsed": max((line[runs.ELAPSED] for line in lines), default=0.0),
                    **{name: round(value, 1) for name, value in seconds.items()}},
        "evaluations": {name: _compare(sorted(rows, key=lambda row: row["tick"])) for name, rows in evaluations.items()},
    }


def render(summary: dict[str, Any]) -> str:
    """The summary as text: one block an evaluation, before and after by type."""
    out = [f"{summary['updates']} updates, {summary['episodes']} episodes, {summary['seconds']['elapsed']:.0f} s"]
    for name, rows in summary["evaluations"].items():
        out.append(f"success on {name}, update {rows['before']['update']} -> {rows['after']['update']}")
        for kind in rows["after"]["success"]:
            before, after = rows["before"]["success"][kind], rows["after"]["success"][kind]
            low, high = rows["after"]["interval"]
            interval = f"   95 % interval {low:.1%} to {high:.1%}" if kind == "all" else ""
            out.append(f"  {kind:38} {before:7.1%} -> {after:7.1%}   of {rows['after']['count'][kind]} games{interval}")
    return "\n".join(out)


def _compare(rows):
    best = max(rows, key=lambda row: row["success"])
    return {"before": _row(rows[0]), "after": _row(rows[-1]), "best": _row(best)}


def _row(line):
    types = [name.removeprefix("success/") for name in line if name.startswith("success/")]
    return {
        "update": line["tick"],
        "success": {"all": line["success"]} | {kind: line[f"success/{kind}"] for kind in types},
        "count": {"all": line["count"]} | {kind: line[f"count/{kind}"] for kind in types},
        "interval": [line["low"], line["high"]],
    }
