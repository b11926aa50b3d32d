"""ALFWorld's text grammar, parsed once by textworld's own parsers and then derived quickly.

textworld parses each template anew at every use and copies its contexts deeply: nine tenths of the time of a step of
the stock engine. Here the parsed symbols are turned into closures once. The meaning is that of
`textworld.envs.pddl.textgen` and `textworld.logic.State.all_assignments`, rule by rule, and a test holds the two
equal byte by byte. The small expressions in the templates (`o.indefinite + ' ' + o.name`) are interpreted, not
evaluated: a game file is data. (textworld's own `eval` reads variables that it puts into `locals()`, which Python
3.13 no longer allows; nothing of that is used here.)

A *binding* maps (placeholder, type) to the id of an entity. *Facts* map a predicate to the set of its argument tuples.
"""

import ast
from collections.abc import Callable, Iterator, Mapping

from textworld.envs.pddl import logic, textgen
from textworld.logic import Rule

Binding = dict[tuple[str, str], str]
Facts = Mapping[str, set[tuple[str, ...]]]
Names = Mapping[str, str]
Derive = Callable[[Binding, Facts, Names], str]


class Grammar:
    """The sentences and command templates of a game's grammar (a `.twl2` text)."""

    def __init__(self, text: str):
        actions, parsed = logic._parse_and_convert(text, rule_name="pddlStart")
        self._rules = {
            name: [(_query(rule.condition), self._sequence(rule.rhs)) for rule in rules]
            for name, rules in parsed._rules.items()
        }
        templates = {name: _parse(action.template) for name, action in actions.items()}
        self._templates = {name: self._sequence(symbols) for name, symbols in templates.items()}
        self._feedback = {name: self._sequence(_parse(action.feedback_rule)) for name, action in actions.items()}
        rules = [rule for rules in parsed._rules.values() for rule in rules]
        # The predicates that sentences depend on, and those that the wording of commands depends on.
        self.reads = set().union(*(_predicates(rule.condition) | _reads(rule.rhs) for rule in rules))
        self.template_reads = set().union(*map(_reads, templates.values()))

    def command(self, action: str, binding: Binding, facts: Facts, names: Names) -> str:
        """The command that plays an action."""
        return self._templates[action](binding, facts, names)

    def feedback(self, action: str, binding: Binding, facts: Facts, names: Names) -> str:
        """What the engine says after an action, in the state after it."""
        return self._feedback[action](binding, facts, names)

    def sentence(self, rule: str, facts: Facts, names: Names) -> str:
        """The derivation of one rule without bindings, such as "intro"."""
        return self._rule(rule)({}, facts, names)

    def _sequence(self, symbols: list) -> Derive:
        parts = [self._symbol(symbol) for symbol in symbols]
        if len(parts) == 1:
            return parts[0]
        return lambda binding, facts, names: "".join([part(binding, facts, names) for part in parts])

    def _symbol(self, symbol) -> Derive:
        if isinstance(symbol, textgen.TerminalSymbol):
            return lambda binding, facts, names: symbol.symbol
        if isinstance(symbol, textgen.NonterminalSymbol):
            return self._rule(str(symbol))
        if isinstance(symbol, textgen.EvalSymbol):
            return _expression(symbol.expression)
        if isinstance(symbol, textgen.ConditionalSymbol):
            each = self._each(symbol)
            return lambda binding, facts, names: "".join(each(binding, facts, names))
        if isinstance(symbol, textgen.ListSymbol):
            return self._list(self._each(symbol.symbol))
        raise TypeError(f"textworld's grammar has a symbol of a kind that is unknown here: {symbol!r}")

    def _rule(self, name: str) -> Derive:
        def derive(binding, facts, names):
            for query, right_hand_side in self._rules[name]:
                if query is None or next(assignments(query, binding, facts), None) is not None:
                    return right_hand_side(binding, facts, names)
            raise ValueError(f"no rule of the grammar's symbol {name!r} applies")

        return derive

    def _each(self, symbol) -> Callable[[Binding, Facts, Names], list[str]]:
        """One derivation of `{expression | query}` for each answer to the query."""
        expression, query = self._symbol(symbol.expression), _query(symbol.given)
        if query is None:
            return lambda binding, facts, names: [expression(binding, facts, names)]
        return lambda binding, facts, names: [
            expression(found, facts, names) for found in assignments(query, binding, facts)
        ]

    def _list(self, each) -> Derive:
        def derive(binding, facts, names):
            items = each(binding, facts, names)
            if not items:
                return self._rule("list_empty")(binding, facts, names)
            if len(items) == 1:
                return items[0]
            separator = self._rule("list_separator")(binding, facts, names)
            return separator.join(items[:-1]) + self._rule("list_last_separator")(binding, facts, names) + items[-1]

        return derive


Query = list[tuple[str, list[tuple[str, str]]]]  # (predicate, its placeholders)


def assignments(query: Query, binding: Binding, facts: Facts, depth: int = 0) -> Iterator[Binding]:
    """The bindings that extend `binding` and make all predicates of a query true, in textworld's order.

    Facts are tried in sorted order and distinct placeholders stand for distinct entities, as in
    `textworld.logic.State`. ALFRED's predicates have one type signature each, so that types need no check.
    """
    if depth == len(query):
        yield binding
        return
    predicate, placeholders = query[depth]
    for arguments in sorted(facts.get(predicate, ())):
        found = dict(binding)
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            if placeholder not in found:
                if argument in found.values():
                    break
                found[placeholder] = argument
            elif found[placeholder] != argument:
                break
        else:
            yield from assignments(query, found, facts, depth + 1)


def _query(condition: str | None) -> Query | None:
    if not condition:
        return None
    rule = Rule.parse_conjunctive_query(condition)
    return [(predicate.name, [(p.name, p.type) for p in predicate.parameters]) for predicate in rule.preconditions]


def _predicates(condition: str | None) -> set[str]:
    return {predicate for predicate, _ in _query(condition) or ()}


def _reads(symbols: list) -> set[str]:
    found = set()
    for symbol in symbols:
        if isinstance(symbol, textgen.ListSymbol):
            found |= _reads([symbol.symbol])
        elif isinstance(symbol, textgen.ConditionalSymbol):
            found |= _predicates(symbol.given) | _reads([symbol.expression])
    return found


def _parse(template: str) -> list:
    return textgen._parse_and_convert(template, rule_name="symbols")


def _expression(source: str) -> Derive:
    """Turns `x`, `x.attribute`, a constant, `a + b` or `a or b` into a closure; any other expression is an error."""

    def build(node: ast.AST) -> Callable[[dict[str, str], Names], str]:
        match node:
            case ast.Constant(value=str(value)):
                return lambda variables, names: value
            case ast.Name(id=variable) | ast.Attribute(value=ast.Name(id=variable), attr="name"):
                return lambda variables, names: names[variables[variable]]
            case ast.Attribute(value=ast.Name(id=variable), attr="id"):
                return lambda variables, names: variables[variable]
            case ast.Attribute(value=ast.Name(), attr="indefinite"):
                return lambda variables, names: "a"
            case ast.Attribute(value=ast.Name(), attr="definite"):
                return lambda variables, names: "the"
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first, second = build(left), build(right)
                return lambda variables, names: first(variables, names) + second(variables, names)
            case ast.BoolOp(op=ast.Or(), values=[left, right]):
                first, second = build(left), build(right)
                return lambda variables, names: first(variables, names) or second(variables, names)
        raise ValueError(f"the grammar's expression {source!r} is outside what ALFWorld's grammars use")

    evaluate = build(ast.parse(source.strip(), mode="eval").body)
    return lambda binding, facts, names: evaluate({name: entity for (name, _), entity in binding.items()}, names)
