"""Which card is read, and what is told where there is none."""

from types import SimpleNamespace

import pynvml
import pytest

from kerasmem.memory import nvidia
from kerasmem.memory.nvidia import CardReading, read_card

pytestmark = pytest.mark.one_backend

UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33")


@pytest.fixture
def cards(monkeypatch):
    """Three cards: the n-th has n + 1 bytes in use of 100."""
    nvidia._handle.cache_clear()
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: UUIDS[handle])

    def by_index(index):
        if index >= 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def by_uuid(uuid):
        if uuid != "MIG-slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 6

    def memory(handle):
        return SimpleNamespace(used=handle + 1, total=100)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", by_index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    yield
    nvidia._handle.cache_clear()


@pytest.mark.parametrize(
    ("visible", "ordinal", "used"),
    [
        (None, 0, 1),
        (None, 2, 3),
        ("2,0", 0, 3),
        ("2, 0", 1, 1),
        ("GPU-cc33,GPU-aa11", 1, 1),
        ("GPU-c", 0, 3),
        ("MIG-slice", 0, 7),
    ],
)
def test_the_card_is_the_one_that_cuda_was_shown(
    cards, monkeypatch, visible, ordinal, used
):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert read_card(ordinal) == CardReading(used_bytes=used, total_bytes=100)


@pytest.mark.parametrize(
    ("visible", "ordinal"), [(None, 3), ("0", 1), ("GPU-zz", 0), ("", 0), ("7", 0)]
)
def test_a_card_that_is_not_there_is_none(cards, monkeypatch, visible, ordinal):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert read_card(ordinal) is None


def test_without_a_driver_there_is_no_reading_and_no_warning(monkeypatch):
    asked = []

    def no_driver():
        asked.append(1)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    nvidia._handle.cache_clear()

    assert read_card(0) is None
    assert read_card(0) is None
    assert len(asked) == 1  # a driver does not come while a process runs
    nvidia._handle.cache_clear()
