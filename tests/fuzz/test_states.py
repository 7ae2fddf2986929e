"""The lane of damaged folders detects each kind of fault."""

from types import SimpleNamespace

import pytest

from kerasmem.errors import OutputError
from tests.fuzz.outcome import WrongResultError
from tests.fuzz.states import worker

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (None, "ok"),
        (OutputError("refused"), "refused"),
        (OSError("raw"), "exception"),
        (WrongResultError("rows"), "wrong value"),
    ],
)
def test_each_result_of_a_call_has_its_outcome(tmp_path, error, word):
    def use(room, request):
        if error:
            raise error

    assert worker.judged(SimpleNamespace(use=use), tmp_path, {}).word == word


def write(path):
    path.write_text("other")


CHANGES = {
    "changed": lambda room: write(room / "precious"),
    "removed": lambda room: (room / "precious").unlink(),
    "new mode": lambda room: (room / "precious").chmod(0o777),
    "new file": lambda room: write(room / "new"),
    "new folder": lambda room: (room / "new").mkdir(),
    "new link": lambda room: (room / "new").symlink_to("precious"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_outside_of_the_output_is_detected(tmp_path, change):
    (tmp_path / "precious").write_text("precious")
    own = {tmp_path / "output"}
    before = worker.snapshot(tmp_path, own)
    write(tmp_path / "output")
    assert worker.snapshot(tmp_path, own) == before
    CHANGES[change](tmp_path)
    assert worker.snapshot(tmp_path, own) != before


def test_a_seed_is_one_case():
    cases = [worker.drawn(seed) for seed in range(20)]
    assert cases == [worker.drawn(seed) for seed in range(20)]
    assert {case["kind"] for case in cases} == set(worker.KINDS)
