"""The fast engine says, offers and decides exactly what the stock engine does."""

import dataclasses
import random
import sys

import pytest
from textworld.core import EnvInfos
from textworld.envs import PddlEnv
from textworld.envs.pddl import textgen

from envs.alfworld import data, engine, simulator

STEPS = 20
# Verbs that change the state; a uniform choice would spend nearly all steps on going about.
DEEDS = ("take", "move", "open", "close", "heat", "cool", "clean", "use", "slice")


def stock_engine(monkeypatch, tmp_path):
    """textworld's PddlEnv under ALFWorld's name wrapper, as ALFWorld builds it."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))  # importing alfworld makes this folder
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    if sys.version_info >= (3, 13):  # the stock engine cannot evaluate its templates there (PEP 667)
        def derive(self, context=None):
            return [textgen.TerminalSymbol(eval(self.expression, {}, dict((context or self.context)["variables"])))]

        monkeypatch.setattr(textgen.EvalSymbol, "derive", derive)
    return AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))


def choose(rng, commands):
    deeds = [command for command in commands if command.split()[0] in DEEDS]
    return rng.choice(deeds if deeds and rng.random() < 0.5 else commands)


def wander(session, game, rng, steps):
    session.reset(game)
    for _ in range(steps):
        session.step(choose(rng, session.node.admissible))


def assert_equals_stock(stock, file, session, seed):
    source = data.read(file)
    grammar = source.grammar.replace(engine.UNKNOWN_TASK, source.task)
    stock.load({"pddl_domain": source.domain, "grammar": grammar, "pddl_problem": source.problem})
    game = data.load(file)
    for other in range(5):  # so that many states and transitions are remembered when the comparison walks through them
        wander(session, game, random.Random(seed + other), 30)
    state, rng = stock.reset(), random.Random(seed)
    assert session.reset(game) == state.feedback
    for step in range(STEPS):
        assert session.node.admissible == tuple(state["admissible_commands"])
        assert session.node.won == state["won"]
        command = "open the pod bay doors" if step == 7 else choose(rng, state["admissible_commands"])
        state, _, _ = stock.step(command)
        assert session.step(command) == state.feedback, command


def test_generated_games_equal_the_stock_engine(made, monkeypatch, tmp_path):
    stock, session = stock_engine(monkeypatch, tmp_path), engine.Session()
    files = {task: made / task.id / data.GAME for task in data.tasks(made, "train")}
    for seed, kind in enumerate(data.TASK_TYPES):  # the smallest of each type: the stock engine is slow
        smallest = min((files[task] for task in files if task.type == kind), key=lambda file: file.stat().st_size)
        assert_equals_stock(stock, smallest, session, seed)
    session.close()


def test_real_games_equal_the_stock_engine(real, monkeypatch, tmp_path):
    stock, session = stock_engine(monkeypatch, tmp_path), engine.Session()
    for seed, task in enumerate(data.tasks(real, "train")[:2]):
        assert_equals_stock(stock, real / task.id / data.GAME, session, seed)
    session.close()


def test_the_winning_plan_wins_in_the_stock_engine(made, monkeypatch, tmp_path):
    stock = stock_engine(monkeypatch, tmp_path)
    task = data.tasks(made, "valid_seen")[0]
    stock.load(str(made / task.id / data.GAME))
    stock.reset()
    for command in data.read(made / task.id / data.GAME).walkthrough:
        state, score, done = stock.step(command)
    assert (state["won"], score, done) == (True, 1, True)


def test_forgetting_changes_nothing(made, monkeypatch):
    # With room for three states, nearly every step meets a state that was forgotten.
    file = made / data.tasks(made, "train")[0].id / data.GAME
    sessions, said = [engine.Session(), engine.Session()], []
    for limit, session in zip((3, 1000), sessions, strict=True):
        monkeypatch.setattr(engine, "MAX_STATES", limit)
        data.load.cache_clear()
        rng, game, texts = random.Random(3), data.load(file), []
        for _ in range(3):
            texts.append(session.reset(game))
            for _ in range(25):
                texts.append(session.step(choose(rng, session.node.admissible)))
        said.append(texts)
        assert len(game._nodes) <= limit
        session.close()
    assert said[0] == said[1]


def test_states_that_differ_in_nothing_are_one(made):
    session = engine.Session()
    session.reset(data.load(made / data.tasks(made, "train")[0].id / data.GAME))
    start = session.node
    session.step("look")
    session.step("inventory")
    assert session.node is start
    there = [command for command in start.admissible if command.startswith("go to")]
    session.step(there[0])
    session.step(there[-1])
    reached = session.node
    session.reset(data.load(made / data.tasks(made, "train")[0].id / data.GAME))
    session.step(there[-1])
    assert session.node is reached
    session.close()


def test_what_the_speed_layer_cannot_do_is_refused(made):
    file = made / data.tasks(made, "train")[0].id / data.GAME
    source = data.read(file)
    # isOn is changed by conditional effects; a domain that reads it has states that facts cannot tell apart.
    domain = source.domain.replace("(and (toggleable ?o)", "(and (isOn ?o) (toggleable ?o)", 1)
    assert domain != source.domain
    with pytest.raises(ValueError, match=r"reads \['ison'\], which conditional effects change"):
        simulator.translate(domain, source.problem)
    # A command that is worded by what the receptacle holds would change during the game.
    grammar = source.grammar.replace("go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]",
                                     "go to [{o.name | inreceptacle(o:object, r:receptacle)}]")
    assert grammar != source.grammar
    with pytest.raises(ValueError, match=r"wording of commands depends on \['inreceptacle'\]"):
        data.build(dataclasses.replace(source, grammar=grammar), data.translation(file.parent, source))


def test_display_names_count_down_over_sorted_ids():
    # Demangler: the first id in order gets the highest number; basins are named after their sink.
    names = engine.display_names(["mug_bar_2", "mug_bar_1", "sink_bar_1_bar_sinkbasin", "agent1"])
    assert names == {"mug_bar_1": "mug 2", "mug_bar_2": "mug 1", "sink_bar_1_bar_sinkbasin": "sinkbasin 1", "agent1": "agent1 "}
