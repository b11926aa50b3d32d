"""A game of ALFWorld on its real engine, quickly.

Transitions, applicable actions and the goal test come from the engine's C++ state machine, the words from the
engine's grammar. What is added is memory: a `Game` is shared by all slots of a process that play it, and remembers
each state that anybody reached with its commands, and each transition with its sentence. Members of a group visit the
same states over and over, so that most steps touch neither the state machine nor the grammar. A slot's own state
machine follows lazily: only a transition that nobody has made yet needs it.

Feedback, commands and verdict are byte for byte those of the stock engine (`textworld.envs.PddlEnv` under ALFWorld's
`AlfredDemangler`); tests/envs/alfworld/test_engine.py compares the two.
"""

from collections import Counter

from envs.alfworld import simulator
from envs.alfworld.grammar import Grammar

NOTHING = "Nothing happens."
UNKNOWN_TASK = "UNKNOWN GOAL"  # what the package's grammar says where a game's grammar has its task
MAX_STATES = 1000  # remembered per game, about 2 kB each; a game that outgrows it starts to remember anew

Atom = tuple[str, tuple[str, ...]]  # predicate, arguments
State = frozenset[tuple[Atom, bool]]  # how the facts differ from the first state


class Node:
    """A state that was reached: what can be done in it, and where that led."""

    __slots__ = ("state", "operators", "commands", "admissible", "won", "edges")

    def __init__(self, state: State, operators: tuple[int, ...], commands: tuple[str, ...], won: bool):
        self.state = state
        self.operators = operators  # numbers, in the engine's order
        self.commands = commands  # the command of each operator; the first of equal ones counts
        self.admissible = tuple(sorted(set(commands)))
        self.won = won
        self.edges: dict[int, tuple[str, Node]] = {}  # operator -> feedback, next state


class Game:
    """One game: its translation, its names, and what is known of its states."""

    def __init__(self, translation: simulator.Translation, grammar: Grammar, task: str, machine: simulator.Simulator):
        stale = grammar.template_reads & set(translation.changes)
        if stale:
            raise ValueError(f"the wording of commands depends on {sorted(stale)}, which actions change; "
                             "the engine's speed layer supports wordings that are fixed within a game")
        self.grammar = grammar
        self.task = task
        self.sas = translation.sas
        self.facts = {name: {tuple(arguments) for arguments in rows} for name, rows in translation.facts.items()}
        self.names = display_names(entity for rows in self.facts.values() for row in rows for entity in row)
        self._parameters = {action: [tuple(p) for p in rows] for action, rows in translation.parameters.items()}
        read = grammar.reads | set(translation.reads)
        self._relevant = {predicate.removeprefix("not_") for predicate in read}
        self._spoken = {predicate: self.facts.get(predicate, set()) for predicate in grammar.reads}
        self._actions: dict[int, tuple[str, dict, str, int]] = {}  # operator -> action, binding, command, effects
        self._atoms: dict[str, tuple[Atom, bool]] = {}
        self._nodes: dict[State, Node] = {}
        machine.load(self.sas)
        self.start = self._node(frozenset(), machine)
        self.introduction = grammar.sentence("intro", self._spoken, self.names).replace(UNKNOWN_TASK, task)

    def follow(self, node: Node, operator: int, machine: simulator.Simulator) -> tuple[str, Node]:
        """Applies an operator on a machine that stands at `node`, and remembers the transition."""
        action, binding, _, effects = self._actions[operator]
        changed = dict(node.state)
        for name in machine.apply(operator, effects):
            self._change(changed, name)
        state = frozenset(changed.items())
        reached = self._nodes.get(state) or self._node(state, machine)
        feedback = self.grammar.feedback(action, binding, self._facts_of(state), self.names)
        node.edges[operator] = feedback, reached
        return node.edges[operator]

    def effects(self, operator: int) -> int:
        """The number of effects of an operator, which a machine needs to apply it."""
        return self._actions[operator][3]

    def _node(self, state: State, machine: simulator.Simulator) -> Node:
        operators, seen = [], set()
        for operator in machine.applicable():
            if operator.id not in self._actions:
                self._actions[operator.id] = self._describe(operator)
            command = self._actions[operator.id][2]
            if command not in seen:
                seen.add(command)
                operators.append(operator.id)
        node = Node(state, tuple(operators), tuple(self._actions[o][2] for o in operators), machine.won())
        if len(self._nodes) >= MAX_STATES:
            self._nodes = {frozenset(): self.start}
            self.start.edges.clear()
        self._nodes[state] = node
        return node

    def _describe(self, operator) -> tuple[str, dict, str, int]:
        action, *arguments = operator.name.split()
        binding = dict(zip(self._parameters[action], arguments, strict=False))  # the translator appends parameters of its own
        command = self.grammar.command(action, binding, self.facts, self.names)
        return action, binding, command, operator.nb_effect_atoms

    def _change(self, changed: dict[Atom, bool], name: str) -> None:
        """Notes one effect, unless it makes no difference to anything that is read."""
        atom, truth = self._atoms.get(name) or self._parse(name)
        predicate, arguments = atom
        if predicate not in self._relevant:
            return
        if truth == (arguments in self.facts.get(predicate, ())) and (truth or f"not_{predicate}" not in self._spoken):
            changed.pop(atom, None)
        else:
            changed[atom] = truth

    def _parse(self, name: str) -> tuple[Atom, bool]:
        kind, rest = name.split(" ", 1)
        predicate, arguments = rest.rstrip(")").split("(", 1)
        self._atoms[name] = (predicate, tuple(arguments.split(", ")) if arguments else ()), kind == "Atom"
        return self._atoms[name]

    def _facts_of(self, state: State) -> dict[str, set[tuple[str, ...]]]:
        """The facts that sentences depend on. As in textworld, "not_p" holds what was made false, not all that is."""
        facts = dict(self._spoken)
        own = set()
        for (predicate, arguments), truth in state:
            for name, holds in ((predicate, truth), (f"not_{predicate}", not truth)):
                if name in facts:
                    if name not in own:
                        facts[name] = set(facts[name])
                        own.add(name)
                    (facts[name].add if holds else facts[name].discard)(arguments)
        return facts


class Session:
    """One slot: an episode of a game at a time."""

    def __init__(self):
        self._machine = simulator.Simulator.acquire()
        self._game: Game | None = None
        self._path: list[int] = []  # operators of the episode
        self._applied = 0  # how many of them the machine has made; -1 when it is not in this episode
        self.node: Node | None = None

    def reset(self, game: Game) -> str:
        """Starts an episode and returns the engine's introduction."""
        simulator.claim()
        self._game, self.node = game, game.start
        self._path.clear()
        self._applied = -1
        return game.introduction

    def step(self, command: str) -> str:
        """Plays a command and returns the engine's feedback; a command that is not offered changes nothing."""
        simulator.claim()
        command = command.strip()
        if command not in self.node.commands:
            return NOTHING
        operator = self.node.operators[self.node.commands.index(command)]
        edge = self.node.edges.get(operator)
        if edge is None:
            self._catch_up()
            edge = self._game.follow(self.node, operator, self._machine)
            self._applied += 1
        self._path.append(operator)
        feedback, self.node = edge
        return feedback

    def close(self) -> None:
        self._machine.release()
        self._machine, self._game, self.node = None, None, None

    def _catch_up(self) -> None:
        if self._applied < 0:
            self._machine.load(self._game.sas)
            self._applied = 0
        for operator in self._path[self._applied :]:
            self._machine.apply(operator, self._game.effects(operator))
        self._applied = len(self._path)


def display_names(entities) -> dict[str, str]:
    """The names that players see: class and number, counted down over the sorted ids (ALFWorld's `Demangler`)."""
    entities = sorted(set(entities))
    stems = {}
    for entity in entities:
        stem, separator, _ = entity.partition("_bar_")
        stems[entity] = (stem + "basin" if "basin" in entity else stem) if separator else ""
    left = Counter(stem for stem in stems.values() if stem)
    names = {}
    for entity in entities:
        stem = stems[entity]
        names[entity] = f"{stem} {left[stem]}" if stem else f"{_readable(entity)} "
        left[stem] -= 1
    return names


def _readable(entity: str) -> str:
    for written, meant in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        entity = entity.replace(written, meant)
    return entity
