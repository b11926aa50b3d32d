"""Signals as a request that the loop polls, so that a run that is told to end saves first.

    with interrupt.Stop() as stop:
        while not stop.requested:
            ...
"""

import logging
import signal

log = logging.getLogger(__name__)


class Stop:
    """Turns SIGTERM and the first SIGINT (Ctrl-C) into `requested`. A second SIGINT ends the process at once.

    The second one is left to the operating system: it works even while XLA compiles, where Python handles no signals.
    For the main thread only, as Python has it.
    """

    def __init__(self):
        self.requested = ""  # name of the signal; empty, thus false, while there was none

    def __enter__(self):
        self._previous = {number: signal.signal(number, self._request) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number, _):
        self.requested = signal.Signals(number).name
        again = ""
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            again = " Ctrl-C again leaves at once."
        log.warning("%s: saving and leaving.%s", self.requested, again)
