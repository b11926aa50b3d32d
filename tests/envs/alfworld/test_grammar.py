"""The compiled grammar: queries in textworld's order, and expressions that are data."""

import pytest

from envs.alfworld import grammar, package

FACTS = {"holds": {("me", "cup"), ("me", "bowl")}, "on": {("bowl", "desk"), ("cup", "bed"), ("cup", "desk")}}
O, P = ("o", "object"), ("p", "object")


def found(query, binding=None):
    return list(grammar.assignments(query, binding or {}, FACTS))


def test_assignments_come_in_sorted_order_and_extend_the_binding():
    assert found([("on", [O, P])]) == [
        {O: "bowl", P: "desk"},
        {O: "cup", P: "bed"},
        {O: "cup", P: "desk"},
    ]
    assert found([("on", [O, P])], {P: "desk"}) == [{P: "desk", O: "bowl"}, {P: "desk", O: "cup"}]


def test_assignments_join_and_keep_placeholders_apart():
    a = ("a", "agent")
    assert found([("holds", [a, O]), ("on", [O, P])], {P: "bed"}) == [{P: "bed", a: "me", O: "cup"}]
    # Distinct placeholders stand for distinct entities: with p bound to the cup, o cannot be the cup.
    assert found([("holds", [a, O])], {P: "cup"}) == [{P: "cup", a: "me", O: "bowl"}]
    assert found([("lost", [O])]) == []


def test_lists_are_worded_by_the_grammar():
    sentences = grammar.Grammar(package.grammar())
    facts = {"holdsany": {("me",)}, "holds": {("me", "cup"), ("me", "bowl"), ("me", "pan")}}
    names = {"me": "agent1 ", "cup": "cup 1", "bowl": "bowl 1", "pan": "pan 2"}
    binding = {("a", "agent"): "me"}
    assert sentences.feedback("inventory", binding, facts, names) == "You are carrying: a bowl 1, a cup 1, and a pan 2."
    facts["holds"] = {("me", "cup")}
    assert sentences.feedback("inventory", binding, facts, names) == "You are carrying: a cup 1."
    assert sentences.feedback("inventory", binding, {}, names) == "You are not carrying anything."


@pytest.mark.parametrize("source", ["__import__('os')", "o.__class__", "o.name.upper()", "open('x')", "o.name * 2"])
def test_expressions_of_a_game_file_are_never_evaluated(source):
    with pytest.raises(ValueError, match="outside what ALFWorld's grammars use"):
        grammar._expression(source)


def test_no_rule_that_applies_is_an_error():
    text = 'grammar :: """{"intro": [{"condition": "holdsany(a:agent)", "rhs": "hands full"}]}""";'
    with pytest.raises(ValueError, match="'intro'"):
        grammar.Grammar(text).sentence("intro", {}, {})
