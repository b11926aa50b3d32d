"""The tables of a report, as HTML. Every string that comes from a run goes through `html.escape`."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rspo_jax.report import charts, curves, runs, summary

LAST_UPDATES = 10  # "how episodes end" is told for the whole run and for so many updates at its end


def settings(records: Sequence[runs.Record]) -> str:
    """Facts and config of all runs side by side: what differs first and marked, the rest folded away."""
    rows = [(name, [record.facts.get(name, runs.NOT_STATED) for record in records]) for name in runs.COMPARABILITY]
    extra = dict.fromkeys(name for record in records for name in record.facts if name not in runs.COMPARABILITY)
    rows += [(name, [record.facts.get(name, "") for record in records]) for name in extra]
    keys = dict.fromkeys(key for record in records for key in record.config)
    config = [(f"config.{key}", [record.config.get(key, "absent") for record in records]) for key in sorted(keys)]
    head = ["", *(record.name for record in records)]
    differing = [row for row in config if _differs(row[1])]
    same = [row for row in config if not _differs(row[1])]
    parts = [_table(head, [_setting(row) for row in [*rows, *differing]])]
    if same:
        title = f"Config ({len(same)})" if len(records) == 1 else f"Config, where all runs have the same ({len(same)})"
        parts.append(f"<details><summary>{title}</summary>{_table(head, [_setting(row) for row in same])}</details>")
    return "".join(parts)


def changes(records: Sequence[runs.Record]) -> str:
    """Warnings of the runs, and config values that changed when a run was resumed; "" where there are none."""
    items = []
    for record in records:
        for change in record.config_changes:
            text = f"config.{change['key']} was {change['was']}, is {change['now']} from tick {change['tick']} on"
            items.append(f"{record.name}: {text}")
        items += [f"{record.name}, tick {line['tick']}: {line['text']}" for line in record.lines.get("warning", ())]
    return f'<ul class="warnings">{"".join(f"<li>{html.escape(item)}</li>" for item in items)}</ul>' if items else ""


def results(groups: Sequence[runs.Group]) -> str:
    """Success of the last and of the best evaluation of each group: all episodes, then each type."""
    parts = []
    for kind in [kind for kind in curves.kinds(groups) if kind.startswith("eval")]:
        types = [name.removeprefix("success/") for name in curves.names(groups, kind) if name.startswith("success/")]
        rows = []
        for index, group in enumerate(groups):
            evaluations = [record.lines[kind] for record in group.records if record.lines.get(kind)]
            if evaluations:
                last = [lines[-1] for lines in evaluations]
                best = [max(lines, key=lambda line: (_rate(line), line["tick"])) for lines in evaluations]
                both = [("last and best", last)] if last == best else [("last", last), ("best", best)]
                rows += [_result(index, group.name, which, lines, types) for which, lines in both]
        head = ["", "", "updates", "all", *(name.replace("_", " ") for name in types)]
        parts.append(f"<h3>{html.escape(charts.eval_title(kind))}</h3>{_table(head, rows)}")
    return "".join(parts) or "<p>No evaluation was logged.</p>"


def terminations(groups: Sequence[runs.Group]) -> str:
    """Why episodes of training ended, with every episode that was started; "" where no run logged it."""
    reasons = [name for name in curves.names(groups, "update") if name.startswith(("termination/", "errors/"))]
    rows = []
    for index, group in enumerate(groups):
        whole = [line for record in group.records for line in record.lines.get("update", ())]
        late = [line for record in group.records for line in record.lines.get("update", ())[-LAST_UPDATES:]]
        for which, lines in (("all updates", whole), (f"last {LAST_UPDATES}", late)):
            counts = {reason: sum(line.get(reason, 0) for line in lines) for reason in reasons}
            total = sum(count for reason, count in counts.items() if reason.startswith("termination/"))
            if total:
                shares = [_cell(_percent(counts[reason] / total), f"{counts[reason]:,}") for reason in reasons]
                rows.append([_run(index, group.name), f"<th>{which}</th>", _cell(f"{total:,}"), *shares])
    names = [reason.removeprefix("termination/").replace("errors/", "error: ").replace("_", " ") for reason in reasons]
    return _table(["", "", "episodes", *names], rows) if rows else ""


def _result(index: int, name: str, which: str, lines: Sequence[Mapping[str, Any]], types: Sequence[str]) -> list[str]:
    ticks = ", ".join(dict.fromkeys(str(line["tick"]) for line in lines))
    rates = [_pooled(lines, "success", "count"), *(_pooled(lines, f"success/{t}", f"count/{t}") for t in types)]
    return [_run(index, name), f"<th>{which}</th>", _cell(ticks), *rates]


def _pooled(lines: Sequence[Mapping[str, Any]], success: str, count: str) -> str:
    """A success rate over the episodes of all seeds; the interval is over episodes, not over seeds."""
    pairs = [(line[success], line[count]) for line in lines if line.get(count, 0)]
    total = sum(number for _, number in pairs)
    if not total:
        rates = [line[success] for line in lines if success in line and count not in line]
        return _cell(_percent(sum(rates) / len(rates))) if rates else _cell("–", "none played")
    successes = sum(rate * number for rate, number in pairs)
    low, high = summary.wilson(successes, total)
    return _cell(_percent(successes / total), f"{100 * low:.0f}–{100 * high:.0f}, n = {total}")


def _rate(line: Mapping[str, Any]) -> float:
    rate = line.get("success", math.nan)
    return -1.0 if math.isnan(rate) else rate


def _setting(row: tuple[str, Sequence[Any]]) -> list[str]:
    name, values = row
    mark = ' class="differs"' if _differs(values) else ""
    return [f"<th>{html.escape(name)}</th>", *(f"<td{mark}>{html.escape(_shown(value))}</td>" for value in values)]


def _differs(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(_shown(item) for item in value) if isinstance(value, list | tuple) else str(value)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _cell(main: str, detail: str = "") -> str:
    small = f"<small>{html.escape(detail)}</small>" if detail else ""
    return f'<td class="number">{html.escape(main)}{small}</td>'


def _run(index: int, name: str) -> str:
    return f'<th><i class="swatch" style="background:var(--run{index % charts.COLOURS})"></i>{html.escape(name)}</th>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways in itself where the screen is narrow; rows are cells that are HTML already."""
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'
