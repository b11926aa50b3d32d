"""Which groups an update trains on, and how often fresh ones are played for those that are missing."""

import types as python_types

import pytest
from episodes import episode

from rspo_jax.rollout import collect
from rspo_jax.train import gather, session


def options(keep_groups, tries=1, group_size=2):
    return python_types.SimpleNamespace(
        loop=python_types.SimpleNamespace(keep_groups=keep_groups, sampling_tries=tries, group_size=group_size))


@pytest.mark.parametrize("kind, kept", [
    ("all", {0, 1, 2, 3}),
    ("mixed", {0, 3}),
    ("between", {0}),  # means 1/2, 1, 0, 9/10
    ("widest", {0, 1, 3}),  # three of four groups; of the two without spread the lower number
])
def test_filters(kind, kept):
    outcomes = {0: (1.0, 0.0), 1: (1.0, 1.0), 2: (0.0, 0.0), 3: (1.0, 0.8)}
    played = [episode(group, outcome) for group, pair in outcomes.items() for outcome in pair]
    found = {t.group for t in gather.keep(options(kind), played)}
    assert found == kept


@pytest.mark.parametrize("tries, played, counts", [(1, 3, 1), (2, 5, 2), (9, 6, 3)])
def test_fresh_groups_are_played_for_those_left_out(monkeypatch, tries, played, counts):
    # Every odd group is mixed: 0 1 2 | 3 4 | 5 leave 1, 3 and 5.
    drawn = []

    def draw(session, progress, tasks, members):
        first = len(drawn)
        drawn.extend(range(first, first + tasks))
        return drawn[first:]

    def play(session, params, episodes, name, update):
        made = [episode(group, outcome) for group in episodes for outcome in (float(group % 2), 0.0)]
        return collect.Rollout(made, {"env": 1.0})

    monkeypatch.setattr(gather.sessions, "draw", draw)
    monkeypatch.setattr(gather.sessions, "play", play)
    opened = python_types.SimpleNamespace(settings=options("mixed", tries))
    rollout = gather.play(opened, session.Progress(), None, 3)
    assert len(rollout.trajectories) == 2 * played and rollout.seconds["env"] == {1: 1, 2: 2, 9: 3}[tries]
    assert len({t.group for t in gather.keep(opened.settings, rollout.trainable)}) == counts
