"""JSON lines that survive crashes: append-only, one object per line, strict JSON.

Files are pure ASCII (everything else is escaped), so a line ends at "\\n" and nowhere else: `str.splitlines` would also
split at the U+2028 that observations contain. JSON has no NaN: a value that is not finite is written as null, and the
key `non_finite` of the same line says which of nan, inf and -inf it was, so that reading gives back what was measured.
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

NON_FINITE = "non_finite"


def encode(record: Mapping[str, Any]) -> str:
    """One line, with its newline. Numbers below the top level must be finite (ValueError otherwise)."""
    lost = {key: str(value) for key, value in record.items() if isinstance(value, float) and not math.isfinite(value)}
    if not lost:
        return json.dumps(record, allow_nan=False) + "\n"
    return json.dumps({**record, **dict.fromkeys(lost), NON_FINITE: lost}, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """A nested value as strict JSON has it: numbers that are not finite become the strings "inf", "-inf" and "nan"."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def decode(line: str) -> dict[str, Any]:
    """The record that `encode` was given."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {line[:40]!r}")
    record.update({key: float(value) for key, value in record.pop(NON_FINITE, {}).items()})
    return record


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """All whole lines of a file. What follows the last newline is a line still being written, and is left out.

    Raises ValueError, naming file and line, for a line that is not a JSON object.
    """
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decode(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}. Remove or mend this line; the others are kept.") from error
    return records


def repair(path: pathlib.Path) -> str:
    """Makes a file that a crash left end with a whole line again, and returns the fragment that was cut off.

    A last line that only lacks its newline is completed, any other fragment is removed. A file that does not exist or
    ends well is not touched, and the answer is then "".
    """
    if not path.exists():
        return ""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    fragment = content[whole:].decode("utf-8", errors="replace")
    if not fragment:
        return ""
    try:
        decode(fragment)
    except ValueError:
        os.truncate(path, whole)
        return fragment
    with path.open("ab") as file:
        file.write(b"\n")
    return ""
