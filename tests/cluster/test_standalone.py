"""That nothing of a cluster is left when whoever started it is gone."""

import subprocess

from tests.cluster.standalone import GUARD, PATIENCE_S


def test_a_guard_kills_its_group_when_nobody_holds_its_standard_input() -> None:
    with subprocess.Popen(["sh", "-c", GUARD], stdin=subprocess.PIPE, process_group=0) as guard:
        assert guard.stdin is not None
        with subprocess.Popen(["sleep", "1000"], process_group=guard.pid) as guarded:
            assert guarded.poll() is None
            guard.stdin.close()
            assert guarded.wait(PATIENCE_S) == -9
        assert guard.wait(PATIENCE_S) == -9
