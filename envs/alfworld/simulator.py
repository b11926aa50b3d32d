"""The C++ state machine of the engine and its PDDL translator (fast-downward), with their hazards fenced off.

- `fast_downward.close_lib` makes the interpreter crash at exit, and a library that is dropped without it leaks. So a
  library is never closed: it goes back to a free list and serves the next slot.
- The translator, its options and textworld's parsers are global, and the translator replaces `sys.stdout` while it
  runs: four threads with an environment each die within a second. The first thread that uses the engine owns it;
  any other is refused.
- `pddl2sas` overwrites `sys.argv`; it is put back.
"""

import dataclasses
import gc
import os
import sys
import threading

import fast_downward
from fast_downward.translate import pddl

_owner: tuple[int, int] | None = None  # (process, thread) that the engine belongs to
_free: list["Simulator"] = []


def claim() -> None:
    """Makes the calling thread the engine's owner. Raises RuntimeError where another thread of the process is."""
    global _owner
    caller = (os.getpid(), threading.get_ident())
    if _owner is None or _owner[0] != caller[0]:
        _owner = caller
    if _owner != caller:
        raise RuntimeError("the ALFWorld engine is not thread-safe and belongs to another thread of this process; "
                           "use one worker process per thread of environments (envs.pool does)")


@dataclasses.dataclass(frozen=True)
class Translation:
    """A game in the form that the state machine reads, with what the planning format forgets."""

    sas: bytes
    facts: dict[str, list[list[str]]]  # predicate -> argument lists, true at the start; static facts included
    parameters: dict[str, list[list[str]]]  # action -> [name, type] of its parameters
    reads: list[str]  # predicates that decide which actions apply or whether the goal holds
    changes: list[str]  # predicates that some action changes


def translate(domain: str, problem: str) -> Translation:
    """Translates PDDL with the engine's own translator and options, so that operators and facts are the engine's."""
    claim()
    arguments, collecting = sys.argv, gc.isenabled()
    gc.disable()  # a fifth of the time: the translator makes a million small objects that all live to its end
    try:
        task, sas = fast_downward.pddl2sas(domain, problem)
    finally:
        sys.argv = arguments
        if collecting:
            gc.enable()
    facts = {}
    for atom in task.init:
        if isinstance(atom, pddl.Atom) and atom.predicate != "=":
            facts.setdefault(atom.predicate, []).append(list(atom.args))
    facts = {predicate: sorted(rows) for predicate, rows in sorted(facts.items())}  # the translator's order is a set's
    reads, changes = _dependencies(task)
    parameters = {a.name: [[p.name.strip("?"), p.type_name] for p in a.parameters] for a in task.actions}
    return Translation(sas.encode(), facts, parameters, sorted(reads), sorted(changes))


def _dependencies(task: pddl.Task) -> tuple[set[str], set[str]]:
    """The predicates that matter to actions and goal, and the predicates that actions change.

    textworld's fact base applies conditional effects whether or not their condition holds, so it is no function of
    the true state for predicates that only such effects change (ALFRED: isOn, which nothing reads). Where something
    does read one, states could not be told apart by their facts, and the domain is refused.
    """
    reads = set(_predicates(task.goal))
    for axiom in task.axioms:
        reads.update(_predicates(axiom.condition))
    changes, conditional = set(), set()
    for action in task.actions:
        reads.update(_predicates(action.precondition))
        for effect in action.effects:
            changes.add(effect.literal.predicate)
            tested = set(_predicates(effect.condition))
            if tested:
                conditional.add(effect.literal.predicate)
                reads.update(tested - {effect.literal.predicate})
    if conditional & reads:
        raise ValueError(f"the PDDL domain {task.domain_name!r} reads {sorted(conditional & reads)}, which conditional "
                         "effects change; the engine's speed layer supports this for predicates that nothing reads")
    return reads, changes


def _predicates(condition):
    if isinstance(condition, pddl.Literal):
        yield condition.predicate
    for part in condition.parts:
        yield from _predicates(part)


class Simulator:
    """One copy of the engine's state machine. It knows operators by their numbers."""

    def __init__(self):
        self._library = fast_downward.load_lib()

    @classmethod
    def acquire(cls) -> "Simulator":
        """A released machine where there is one, else a new one."""
        claim()
        return _free.pop() if _free else cls()

    def release(self) -> None:
        """Hands the machine on; whoever acquires it loads a game first."""
        _free.append(self)

    def load(self, sas: bytes) -> None:
        """Puts the machine into the initial state of a translated game."""
        self._library.load_sas(sas)

    def apply(self, operator: int, effects: int) -> list[str]:
        """Applies an operator and returns the names of the facts that it makes true ("NegatedAtom .." for false)."""
        atoms = (fast_downward.Atom * effects)()
        self._library.apply_operator(operator, atoms)
        return [atom.name for atom in atoms]

    def applicable(self) -> list[fast_downward.Operator]:
        """The operators that apply now, in the engine's order."""
        operators = (fast_downward.Operator * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(operators)
        return list(operators)

    def won(self) -> bool:
        """Whether the goal holds."""
        return self._library.check_goal()
