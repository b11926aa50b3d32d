"""An environment family for tests of whole runs: an episode is four actions long at most and ends as its actions' letters say."""

import zlib

from envs import protocol


def make():
    return Coin()


class Coin:
    """Each action wins with probability one sixth, by a checksum of the actions so far: half of the episodes are won."""

    def tasks(self, split):
        return [protocol.Task(f"{split} {number}", "coin") for number in range(6)]

    def reset(self, task_id, seed):
        self._played = f"{task_id} {seed}"
        return protocol.Observation(text="You see a desk 1.", task="put a mug in desk 1")

    def step(self, action):
        self._played += action
        won = zlib.crc32(self._played.encode()) % 6 == 0
        return protocol.Observation(text=f"You see a drawer {len(action) % 9 + 1}.", reward=float(won), done=won, success=won)

    def close(self):
        pass
