"""`rspo report WORKDIR...`: one self-contained HTML page about one or several runs.

The page asks nothing of any other host, and says so in a content security policy. Numbers and trajectories lie in it as
JSON; two scripts draw them with `createElement` and `textContent` only, so that what an environment or a model wrote
(a product title may contain `</script>`) is shown and never run.
"""

import dataclasses
import datetime
import html
import importlib.resources
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rspo_jax.report import charts, curves, runs, tables

MAX_TRAJECTORIES = 200  # of each run, evenly over the run: some ten megabytes of text


def write_report(workdirs: Sequence[str | os.PathLike], out: str | os.PathLike) -> pathlib.Path:
    """Writes the page and returns its path.

    Args:
      workdirs: of finished or of running runs. What a run did not log is absent from the page.
      out: the file to write; its directory is made.

    Raises:
      FileNotFoundError: a workdir without metrics.jsonl.
    """
    records = runs.load(workdirs)
    out = pathlib.Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(records), encoding="utf-8")
    return out


def page(records: Sequence[runs.Record]) -> str:
    """The whole page."""
    groups = runs.group(records)
    template = _file("page.html")
    for marker, content in _contents(records, groups).items():
        if template.count(f"<!--{marker}-->") != 1:
            raise ValueError(f"page.html must have the marker <!--{marker}--> once.")
        template = template.replace(f"<!--{marker}-->", content)
    return template


def _contents(records: Sequence[runs.Record], groups: Sequence[runs.Group]) -> dict[str, str]:
    """What takes the place of each marker of page.html; what comes from runs is escaped, so it can hold no marker."""
    data = {
        "groups": [{"name": group.name, "colour": index % charts.COLOURS} for index, group in enumerate(groups)],
        "sections": [dataclasses.asdict(section) for section in charts.sections(groups)],
        "tables": curves.tables(groups),
        "trajectories": [{"run": record.name, **t} for record in records for t in _sample(record.trajectories)],
    }
    endings = tables.terminations(groups)
    now = datetime.datetime.now().astimezone()
    return {
        "style": _file("page.css"),
        "charts": _file("charts.js"),
        "viewer": _file("viewer.js"),
        "title": html.escape(", ".join(group.name for group in groups)),
        "summary": html.escape(f"{_plural(len(records), 'run')}. Written {now:%d %B %Y, %H:%M}."),
        "warnings": tables.changes(records),
        "settings": tables.settings(records),
        "results": tables.results(groups),
        "terminations": f"<h2>How episodes of training end</h2>{endings}" if endings else "",
        "sample": html.escape(_sample_note(records)),
        "data": script_json(data),
    }


def script_json(data: Any) -> str:
    """JSON that can stand inside a script element: no `<` in it can end the element or open a comment."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _sample(trajectories: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if len(trajectories) <= MAX_TRAJECTORIES:
        return list(trajectories)
    return [trajectories[round(i * (len(trajectories) - 1) / (MAX_TRAJECTORIES - 1))] for i in range(MAX_TRAJECTORIES)]


def _sample_note(records: Sequence[runs.Record]) -> str:
    parts = []
    for record in records:
        stored, shown = len(record.trajectories), min(len(record.trajectories), MAX_TRAJECTORIES)
        parts.append(f"{record.name}: {shown}" + (f" of {stored}" if shown < stored else ""))
    return "Stored trajectories, " + "; ".join(parts) + "."


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _file(name: str) -> str:
    return importlib.resources.files("rspo_jax.report").joinpath("page", name).read_text(encoding="utf-8")
