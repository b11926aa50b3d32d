"""A worker process as the pool sees it: started, written to and read from without ever waiting for it, and ended.

Both ends of a pair of sockets may be full at once, a worker in the middle of its answers and the pool in the middle of a batch
of requests. So the pool's end does not block: what cannot be written now lies in `outbox` until the socket takes it.
"""

import collections
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

OUTPUT_LIMIT = 1 << 20  # bytes of engine output that are kept
OUTPUT_SHOWN = 2000  # of which the last are shown when a worker fails


class Process:
    """One process. `pending` holds the requests that it has not answered, in the order in which it will."""

    def __init__(self):
        self.pending = collections.deque()
        self.outbox = bytearray()
        self.since = time.monotonic()  # when it last took or gave something while it had work
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        lifeline, self._lifeline = os.pipe()  # nothing is written to it: it closes with this process
        self._inbox = b""
        self._output = tempfile.TemporaryFile()  # engines write to a terminal at will; here it disturbs nobody
        fcntl.fcntl(self._output, fcntl.F_SETFL, fcntl.fcntl(self._output, fcntl.F_GETFL) | os.O_APPEND)
        with theirs, open(lifeline, "rb"):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "faulthandler", "-m", "envs.worker", str(theirs.fileno()), str(lifeline)],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,  # out of reach of the terminal's Ctrl-C, and one group with what an engine starts
                env=_environment())

    @property
    def pid(self):
        return self._process.pid

    @property
    def returncode(self):
        """Exit code, or minus the signal that ended it; known once it was killed or closed."""
        return self._process.returncode

    def push(self, batch):
        """Queues a batch of requests as one message."""
        if not self.pending:
            self.since = time.monotonic()
        self.outbox += json.dumps([pending.message() for pending in batch]).encode() + b"\n"
        self.pending.extend(batch)
        if os.fstat(self._output.fileno()).st_size > OUTPUT_LIMIT:
            self._output.truncate(0)
        self.flush()

    def flush(self):
        """Writes what the socket takes. A worker that is gone takes nothing: `pull` will say so."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.outbox:
                del self.outbox[:self.channel.send(self.outbox)]
                self.since = time.monotonic()

    def pull(self):
        """Returns the answers that have arrived, and whether the worker is gone and these were its last."""
        try:
            data = self.channel.recv(1 << 20)
        except BlockingIOError:
            return [], False
        except ConnectionError:
            return [], True
        self.since = time.monotonic()
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        return [json.loads(line) for line in lines], not data

    def kill(self):
        """Ends the process, and what it has started, at once; returns the end of its output."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # before it is waited for: until then the number is its own
        self._process.wait()
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - OUTPUT_SHOWN))
        output = self._output.read().decode(errors="replace").strip()
        self._release()
        return output

    def wait(self, deadline):
        """Waits for the end of a process whose channel was closed, and kills it after the deadline."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
        self._release()

    def _release(self):
        self.channel.close()
        self._output.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def close(processes, grace):
    """Ends processes together: those that are idle by themselves, what is left after `grace` seconds by force."""
    for each in processes:
        each.channel.close()  # the end of its requests
    deadline = time.monotonic() + grace
    for each in processes:
        each.wait(deadline)


def _environment():
    """Environment variables of a worker."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),  # what the trainer can import, with -P no more
        "PYTHONHASHSEED": "0",  # the order of a set is the same in every worker, so an episode is too
        "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "",  # should an engine bring JAX or torch: the accelerator is taken
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",  # a worker is one core
    }
