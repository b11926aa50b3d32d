import html.parser
import json
import re

import fake_runs
import pytest

from rspo_jax import metrics
from rspo_jax.report import html as report
from rspo_jax.report import runs, summary


class Page(html.parser.HTMLParser):
    """What a browser sees: elements with their attributes, the text outside of scripts, the JSON, the table rows."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.rows, self.data, self._open = [], "", [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = "data" if dict(attrs).get("id") == "data" else tag
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._open = "" if tag in ("script", "style") else self._open

    def handle_data(self, data):
        if self._open == "data":
            self.data += data
        elif self._open not in ("script", "style"):
            self.text += data
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += data.strip() and f" {data.strip()}"


@pytest.fixture(scope="module")
def text(workdirs, tmp_path_factory):
    return report.write_report(workdirs, tmp_path_factory.mktemp("out") / "new" / "report.html").read_text(encoding="utf-8")


def test_the_page_asks_nothing_of_any_host(text):
    page = Page(text)
    assert {tag for tag, _ in page.elements} & {"img", "link", "iframe", "object", "embed", "form"} == set()
    assert not any({"src", "href", "srcset", "onerror", "onload"} & set(attrs) for _, attrs in page.elements)
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}  # a name space, not an address
    assert "url(" not in text and "@import" not in text
    policy = next(attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_what_an_environment_wrote_is_text(text):
    assert fake_runs.HOSTILE not in text and text.count("</script>") == 3
    tasks = {trajectory["task"] for trajectory in json.loads(Page(text).data)["trajectories"]}
    assert fake_runs.HOSTILE in tasks


def test_what_a_config_holds_is_text(tmp_path):
    with metrics.Run(tmp_path / "<b>run", resume=False) as run:
        run.header({"name": fake_runs.HOSTILE, "<i>": 1}, {"data": fake_runs.HOSTILE})
        run.log(1, "update", {"<u>": 1.0, "termination/<s>": 1})
        run.log(1, "eval/<em>/0", {"success": 0.5, "count": 2, "success/<q>": 0.5, "count/<q>": 2})
    page = Page(report.page(runs.load([tmp_path / "<b>run"])))
    assert {tag for tag, _ in page.elements} & {"img", "b", "i", "u", "s", "em", "q"} == {"i"}  # swatches only
    assert all(attrs == {"class": "swatch", "style": "background:var(--run0)"} for tag, attrs in page.elements if tag == "i")
    assert fake_runs.HOSTILE in page.text


def test_all_markers_are_filled(text):
    page = Page(text)
    assert not re.search(r"<!--\w+-->", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    assert "3 runs." in page.text


def test_runs_and_curves_of_the_page(text):
    data = json.loads(Page(text).data)
    assert [group["name"] for group in data["groups"]] == ["rspo-seed0 (mean of 2 seeds)", "grpo-seed0"]
    rspo, grpo = data["tables"]
    assert rspo["update"]["x"]["updates"] == list(range(1, 61)) and "explorer" not in grpo
    assert rspo["update"]["x"]["episodes"][-1] == 2 * 64 * 60
    assert rspo["update"]["x"]["seconds"][-1] == pytest.approx(60 * 20, abs=30)  # and the time to write it all
    assert rspo["update"]["y"]["clip_fraction_off"][6] is None  # nan every seventh update
    assert len(rspo["eval/valid_unseen/0.4"]["x"]["updates"]) == 6
    titles = [section["title"] for section in data["sections"]]
    assert titles[0] == "Success" and "On and off policy" in titles and "Seconds of each update, by phase" in titles


def test_result_table_pools_the_episodes_of_the_seeds(text, workdirs):
    kind = "eval/valid_unseen/0.4"
    last = [record.lines[kind][-1] for record in runs.load(workdirs)[:2]]
    successes, count = (sum(round(line["success"] * line["count"]) for line in last), sum(line["count"] for line in last))
    low, high = summary.wilson(successes, count)
    want = f"{100 * successes / count:.1f} % {100 * low:.0f}–{100 * high:.0f}, n = {count}"
    assert any(want in [cell.strip() for cell in row] for row in Page(text).rows)


def test_terminations_have_every_episode(text):
    rows = [[cell.strip() for cell in row] for row in Page(text).rows]
    (row,) = [row for row in rows if row[:2] == ["grpo-seed0", "all updates"]]
    assert row[2] == "3,840"  # 60 updates of 64
    counts = [int(cell.split("%")[1].replace(",", "")) for cell in row[3:8]]
    assert sum(counts) == 3840


def test_settings_mark_what_differs(text):
    cells = {}
    for row in re.findall(r"<tr><th>(config\.[\w.]+)</th>(.*?)</tr>", text):
        cells[row[0]] = re.findall(r"<td( class=\"differs\")?>(.*?)</td>", row[1])
    assert [value for _, value in cells["config.policy.learning_rate"]] == ["0.0003", "0.0003", "0.0001"]
    assert all(mark for mark, _ in cells["config.policy.learning_rate"])
    assert [value for _, value in cells["config.off_policy_fraction"]] == ["0.125", "0.125", "absent"]
    assert cells["config.policy.betas"] == [("", "0.9, 0.99")] * 3


def test_a_run_with_next_to_nothing_has_a_page(tmp_path):
    with metrics.Run(tmp_path, resume=False) as run:
        run.log(1, "sft", {"loss": 2.0})
    page = Page(report.page(runs.load([tmp_path])))
    assert "No evaluation was logged." in page.text
    assert [section["title"] for section in json.loads(page.data)["sections"]] == ["Everything else that was logged"]


def test_warnings_are_on_the_page(tmp_path):
    metrics.Run(tmp_path, resume=False).close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"torn')
    metrics.Run(tmp_path, resume=True).close()
    assert "ended in a torn line" in Page(report.page(runs.load([tmp_path]))).text


def test_many_trajectories_are_thinned_out_evenly_and_it_says_so(workdirs, monkeypatch):
    monkeypatch.setattr(report, "MAX_TRAJECTORIES", 5)
    records = runs.load(workdirs[2:])
    page = Page(report.page(records))
    ticks = [trajectory["tick"] for trajectory in json.loads(page.data)["trajectories"]]
    assert len(ticks) == 5 and ticks[0] == 5 and ticks[-1] == 60 and ticks == sorted(ticks)
    assert "grpo-seed0: 5 of 24" in page.text
