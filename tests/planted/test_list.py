"""Each planted fault fits the code, so that it can be planted."""

import pytest

from tests.planted.faults import ROOT, faults

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_replaces_one_text_and_compiles(fault):
    compile(fault.planted(), fault.file, "exec")
    assert fault.new != fault.old
    assert all((ROOT / path).exists() for path in fault.tests)


def test_a_text_that_is_gone_or_occurs_twice_is_an_error(tmp_path):
    (fault, *_) = faults()
    file = tmp_path / "kerasmem" / fault.file
    file.parent.mkdir(parents=True)
    for text, count in (("", 0), (2 * fault.old, 2)):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"Received: {count} times"):
            fault.planted(tmp_path)
