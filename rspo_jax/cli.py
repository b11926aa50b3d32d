"""The `rspo` command.

    rspo train|sft|prm|eval|play --config=configs/rspo.py:alfworld [--config.loop.updates=50 ...] --workdir=DIR
    rspo report WORKDIR... --out=report.html
    rspo envs make alfworld --out=DIR --games=N --seed=S
    rspo envs check DIR
"""

import argparse
import difflib
import functools
import os
import runpy
import sys

from absl import flags
from ml_collections import config_dict, config_flags

COMMANDS = {
    "train": "train a policy; the same command resumes",
    "sft": "make the small policy from nothing by behaviour cloning, WORKDIR/model",
    "prm": "train RSPO's process reward model, WORKDIR/prm",
    "eval": "evaluate the newest checkpoint of WORKDIR, or, without one, config.model.directory",
    "play": "play one episode and show it",
    "report": "one HTML page of one or several workdirs",
    "envs": "make or check games",
}

_CONFIG = config_flags.DEFINE_config_file("config", None, "file:variant, for example configs/rspo.py:alfworld", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "where everything of the run lies")
_SPLIT = flags.DEFINE_string("split", "valid_unseen", "play: split of the game")
_GAME = flags.DEFINE_integer("game", 0, "play: number of the game in its split")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.4, "play: sampling temperature, 0 is greedy")


def main() -> None:
    """Entry point. A mistake in what was asked for is one sentence and exit code 2, never a traceback."""
    command, *rest = sys.argv[1:] or ["--help"]
    if command not in COMMANDS or {"--help", "-h"} & set(rest) and command not in ("report", "envs"):
        print(__doc__, *(f"    {name:8} {text}" for name, text in COMMANDS.items()), sep="\n")
        sys.exit(0 if {"--help", "-h"} & {command, *rest} else 2)
    problem = {"report": _report, "envs": _envs}.get(command, functools.partial(_with_config, command))(rest)
    if problem:
        print(f"rspo {command}: {problem}", file=sys.stderr)
        sys.exit(2)


def _with_config(command, arguments):
    """Runs a command that needs a config. Returns what is wrong with its arguments, if anything is."""
    try:
        _check_keys(arguments)
        left_over = flags.FLAGS([command, *arguments])[1:]
    except (ValueError, OSError, flags.Error) as error:
        return str(error)
    foreign = [name for name in ("split", "game", "temperature") if flags.FLAGS[name].present and command != "play"]
    if foreign:
        return f"--{foreign[0]} belongs to rspo play; the other commands read the config."
    if left_over:
        return f"left-over arguments {left_over}; an option is written --config.key=value."
    for flag in (_CONFIG, _WORKDIR):
        if flag.value is None:
            return f"--{flag.name} is missing."
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of the missing torch, which nothing here needs
    # Heavy imports come after the arguments are known to be good.
    from rspo_jax.train import commands, session

    run = {"train": commands.train, "sft": commands.warm_start, "prm": commands.prm, "eval": commands.evaluation,
           "play": functools.partial(commands.play, split=_SPLIT.value, game=_GAME.value, temperature=_TEMPERATURE.value)}
    try:
        run[command](_CONFIG.value.to_dict(), _WORKDIR.value)
    except session.UsageError as error:
        return error
    except KeyboardInterrupt:
        return "interrupted"
    return None


def _check_keys(arguments):
    """Raises for an override of a key that the config does not have, with its full path and the closest match.

    The flag itself would name the last part of the path only, in an exception of another kind for each depth.
    """
    specs = [argument.removeprefix("--config=") for argument in arguments if argument.startswith("--config=")]
    if not specs:
        return
    file, _, variant = specs[-1].partition(":")
    config = runpy.run_path(file)["get_config"](*[variant] if variant else [])
    for override in (argument for argument in arguments if argument.startswith("--config.")):
        path = override.removeprefix("--").partition("=")[0]
        section = config
        for key in path.split(".")[1:]:
            known = list(section) if isinstance(section, config_dict.ConfigDict) else []
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                raise ValueError(f"{path} is unknown: {key!r} is none of {', '.join(known) or 'its (no) keys'}"
                                 + (f"; did you mean {near[0]!r}?" if near else "."))
            section = section[key]


def _report(arguments):
    parser = argparse.ArgumentParser("rspo report")
    parser.add_argument("workdirs", nargs="+")
    parser.add_argument("--out", default="report.html")
    options = parser.parse_args(arguments)
    from rspo_jax.report import html

    try:
        print(f"wrote {html.write_report(options.workdirs, options.out)}")
    except (ValueError, OSError) as error:
        return error
    return None


def _envs(arguments):
    parser = argparse.ArgumentParser("rspo envs")
    actions = parser.add_subparsers(dest="action", required=True)
    make = actions.add_parser("make")
    make.add_argument("family", choices=["alfworld"])
    make.add_argument("--out", required=True)
    make.add_argument("--games", type=int, default=300, help="games of the train split")
    make.add_argument("--panel", type=int, default=96, help="games of valid_seen and of valid_unseen each")
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("--workers", type=int, default=2)
    check = actions.add_parser("check")
    check.add_argument("directory")
    options = parser.parse_args(arguments)
    from envs import alfworld

    try:
        if options.action == "check":
            report = alfworld.check_games(options.directory)
            print(report)
            return f"{len(report.failures)} games cannot be won as written." if report.failures else None
        wanted = {"train": options.games, "valid_seen": options.panel, "valid_unseen": options.panel}
        print(f"making {sum(wanted.values())} games, each won once in the engine ...", flush=True)
        made = alfworld.make_games(options.out, wanted, options.seed, options.workers)
    except (ValueError, OSError) as error:
        return error
    print(f"wrote {options.out}: " + ", ".join(f"{number} {split}" for split, number in made.items()))
    return None


if __name__ == "__main__":
    main()
