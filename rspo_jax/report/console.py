"""The terminal's view of a run: one line per update that stays, and a note before everything slow.

Without a terminal (a log file, a pipe) the same lines come out plain and unshortened. Text is ASCII, since a log
collector's locale may be: what a run prints must not depend on where it prints.
"""

import collections
import math
import time
from collections.abc import Mapping

import rich.console
import rich.text

Values = Mapping[str, float | str]

ROWS_PER_TITLE = 25  # the titles come again after so many rows, so that one is always on the screen
ETA_UPDATES = 20  # the remaining time is estimated from the pace of so many updates

# (title, width) from left to right. A narrow terminal cuts lines at the right, so what matters most comes first.
COLUMNS = (
    ("update", 12), ("eta", 7), ("success", 8), ("eval", 6), ("dense", 7), ("outcome", 8), ("ratio", 7),
    ("clip on/off", 12), ("entropy", 8), ("kl", 8), ("steps", 6), ("seconds", 8),
)  # fmt: skip


class Console:
    """Prints a run.

    Args:
      total_updates: updates of the whole run, for the ETA; 0 where a run has no such number.
    """

    def __init__(self, total_updates: int):
        self._total = total_updates
        self._rich = rich.console.Console(highlight=False, markup=False, emoji=False)
        self._rows = 0
        self._eval = math.nan
        self._marks: collections.deque[tuple[int, float]] = collections.deque(maxlen=ETA_UPDATES)

    def note(self, text: str) -> None:
        """A line of prose: what starts now and may take a while, or what went wrong."""
        self._line(text, "italic")

    def facts(self, title: str, facts: Mapping[str, object]) -> None:
        """A two-column block of what was decided before the run."""
        width = max(len(name) for name in facts)
        self._line(title, "bold")
        for name, value in facts.items():
            self._line(f"  {name:<{width}}  {value}", "")

    def row(self, kind: str, tick: int, values: Values) -> None:
        """One line of metrics. Updates of the agent, updates of the explorer and harvests are rows of the table; an evaluation
        and any other kind have a line of their own, without the parts (by type, by phase) of the latter."""
        if kind == "update":
            self._marks.append((tick, time.monotonic()))
            self._table_row(f"{tick}/{self._total}" if self._total else f"{tick}", self._eta(), values, "")
        elif kind in ("explorer", "harvest"):
            self._table_row(f"{kind} {tick}", "", values, "dim")
        elif kind.startswith("eval"):
            self._eval = float(values["success"])
            self._line(f"{kind} at {tick}: {_evaluation(values)}", "bold")
        else:
            shown = {name: value if isinstance(value, str) else f"{value:.4g}" for name, value in values.items()}
            self._line(f"{kind} {tick}  " + "  ".join(f"{name} {value}" for name, value in shown.items() if "/" not in name), "")

    def _table_row(self, label: str, eta: str, values: Values, style: str) -> None:
        if self._rows % ROWS_PER_TITLE == 0:
            self._table_line("".join(f"{title:>{width}}" for title, width in COLUMNS), "bold")
        self._rows += 1
        clips = [_number(values, name, ".3f") for name in ("clip_fraction_on", "clip_fraction_off")]
        cells = (
            label,
            eta,
            _percent(values.get("success")),
            _percent(None if math.isnan(self._eval) else self._eval),
            _number(values, "dense_return", ".3f"),
            _number(values, "outcome_return", ".3f"),
            _number(values, "ratio_mean", ".3f"),
            "/".join(clip for clip in clips if clip),
            _number(values, "entropy", ".3g"),
            _number(values, "kl_ref", ".3g"),
            _number(values, "steps", ".1f"),
            _number(values, "seconds/total", ".1f"),
        )
        row = "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))
        phases = (
            f"{name.removeprefix('seconds/')} {value:.1f}"
            for name, value in values.items()
            if name.startswith("seconds/") and name not in ("seconds/total", "seconds/elapsed")
        )
        self._table_line(row + "  " + " ".join(phases), style)

    def _eta(self) -> str:
        """Remaining time at the pace of the last updates, evaluations and explorer included; "" where unknown."""
        (first, start), (last, now) = self._marks[0], self._marks[-1]
        if not self._total or last <= first:
            return ""
        return duration((self._total - last) * (now - start) / (last - first))

    def _line(self, text: str, style: str) -> None:
        self._rich.print(rich.text.Text(text, style=style), soft_wrap=True)

    def _table_line(self, text: str, style: str) -> None:
        """Like `_line`, but cut at the right of a narrow terminal: a table whose rows wrap cannot be read."""
        line = rich.text.Text(text, style=style)
        if self._rich.is_terminal:
            self._rich.print(line, no_wrap=True, overflow="crop")
        else:
            self._rich.print(line, soft_wrap=True)


def duration(seconds: float) -> str:
    """Two units of a length of time: 45s, 3m20s, 2h05m."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _number(values: Values, name: str, form: str) -> str:
    """The formatted value; a metric that this kind of update does not have leaves its cell empty."""
    return format(values[name], form) if name in values else ""


def _evaluation(values: Values) -> str:
    """`57.5% [48.9%, 65.6%] of 134  pick_heat 40.0% (20) ...`"""
    parts = [_percent(values["success"])]
    if "low" in values:
        parts.append(f"[{_percent(values['low'])}, {_percent(values['high'])}]")
    if "count" in values:
        parts.append(f"of {values['count']}")
    for name, value in values.items():
        if name.startswith("success/"):
            kind = name.removeprefix("success/")
            parts.append(f" {kind} {_percent(value)} ({values[f'count/{kind}']})")
    return " ".join(parts)
