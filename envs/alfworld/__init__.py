"""ALFWorld: household tasks in text, on the real engine (packages alfworld, textworld, fast-downward-textworld).

Read in this order: `environment` (what a policy sees), `engine` (how it is played quickly), `grammar` and `simulator`
(the two halves of the real engine), `data` (games on disk). Where there is no official data, `generate` makes games:
a `blueprint` is drawn in a `scene` by the `prior`, written by `problem`, solved by the `oracle` and won in `check`.
`expert` plays a game that it can only look at; `vocabulary` is every word and name of all this.
"""

from envs.alfworld import check, environment, expert, generate, vocabulary
from envs.alfworld import data as games

make_games = generate.make_games
check_games = check.check_games
words = vocabulary.words
phrases = vocabulary.phrases
Expert = expert.Expert


def make(data: str) -> environment.AlfWorld:
    """A slot that plays the games below the folder `data`; where it is empty, below ALFWORLD_DATA.

    Raises FileNotFoundError, with the command that makes games, where there are none.
    """
    return environment.AlfWorld(games.resolve(data))
