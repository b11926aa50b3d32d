"""`rspo play`: one episode, as a person reads it, in the terminal."""

import math

import rich.console
import rich.panel
import rich.rule
import rich.text

from rspo_jax import types


def print_trajectory(trajectory: types.Trajectory) -> None:
    """Prints the task, each step (observation, response, action, flags, rewards) and the verdict."""
    screen = rich.console.Console(highlight=False, markup=False, emoji=False)
    who = f"{trajectory.task_id}, seed {trajectory.seed}, {trajectory.policy} of update {trajectory.update}"
    screen.print(rich.panel.Panel(_safe(trajectory.task or trajectory.task_id, "bold"), subtitle=_safe(who, "dim")))
    for number, step in enumerate(trajectory.steps, start=1):
        _print_step(screen, number, step)
    if trajectory.success:
        verdict, style = f"success after {len(trajectory.steps)} steps", "bold green"
    else:
        verdict, style = f"no success: {trajectory.termination} after {len(trajectory.steps)} steps", "bold red"
    screen.print(rich.rule.Rule(style="dim"))
    screen.print(_safe(f"{verdict}, outcome {_number(trajectory.outcome)}, {trajectory.seconds:.1f} s", style))


def _print_step(screen: rich.console.Console, number: int, step: types.Step) -> None:
    screen.print(rich.rule.Rule(f"step {number}", style="dim", align="left"))
    screen.print(_safe(step.observation, ""))
    screen.print(_safe(step.response or "(empty response)", "cyan"))
    screen.print(rich.text.Text.assemble("> ", _safe(step.action or "(no action)", "bold")))
    flags = [name for name, holds in (("well formed", step.well_formed), ("admissible", step.admissible)) if not holds]
    parts = [f"not {name}" for name in flags]
    parts += [f"dense reward {_number(step.dense_reward)}", f"outcome reward {_number(step.outcome_reward)}"]
    screen.print(_safe(", ".join(parts), "yellow" if flags else "dim"))


def _number(reward: float) -> str:
    return "not scored" if math.isnan(reward) else f"{reward:.3g}"


def _safe(text: str, style: str) -> rich.text.Text:
    """Text of a model or an environment, without the control characters that could drive the terminal."""
    kept = (char if char in "\n\t" or char.isprintable() or char == "\u2028" else "\ufffd" for char in text)
    return rich.text.Text("".join(kept), style=style)
