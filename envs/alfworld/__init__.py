"""ALFWorld: household tasks in text, on the real engine (packages alfworld, textworld, fast-downward-textworld).

Read in this order: `environment` (what a policy sees), `engine` (how it is played quickly), `grammar` and `simulator`
(the two halves of the real engine), `data` (games on disk). `make_games` and its parts make games where there is no
official data; `oracle` solves a game whose state is known, `expert` one that it can only look at.
"""

from envs.alfworld import data as games
from envs.alfworld import environment


def make(data: str) -> environment.AlfWorld:
    """A slot that plays the games below the folder `data`; where it is empty, below ALFWORLD_DATA.

    Raises FileNotFoundError, with the command that makes games, where there are none.
    """
    return environment.AlfWorld(games.resolve(data))
