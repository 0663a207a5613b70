"""Runs functions in a process of its own: a line of JSON for each, and a line with what came of it.

Started by `test_repeats.py` in processes whose hash seeds, addresses, clocks and locales differ.
"""

import json
import locale
import sys

from penstock.lua import Program
from penstock.model import IteratorKind


def main() -> None:
    """Serve until the input ends."""
    locale.setlocale(locale.LC_ALL, "")
    for line in sys.stdin:
        asked = json.loads(line)
        # What is in memory already moves what comes next to other addresses.
        ran = Program(IteratorKind(asked["kind"]), asked["function"]).run(map(bytes.fromhex, asked["messages"]))
        outputs = [None if output is None else output.hex() for output in ran.outputs]
        state = None if ran.state is None else ran.state.hex()
        sys.stdout.write(json.dumps([outputs, state, str(ran.error)]) + "\n")
        sys.stdout.flush()


main()
