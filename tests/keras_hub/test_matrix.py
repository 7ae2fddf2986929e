"""The table of families and features in the documentation is what is found."""

import keras
import pytest

from tests.keras_hub import matrix
from tests.keras_hub.families import FAMILIES
from tests.keras_hub.rows import Rows

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
# On torch BART's encoder and decoder draw dropout in another order in a copy.
SOME = ["Gemma", "Llama3", "GPT2", "Bert", "ViT"]
MORE = {"jax": "Bart", "torch": "Mixtral"}
BY_GRAPH = ("rematerialize", "compress_activations", "int8-dynamic")
BY_CONFIG = ("heads/width", "student")
SEVEN = ("Gemma", "Llama3", "Bert", "GPT2", "Roberta", "Mixtral", "Bart")


@pytest.fixture(scope="module")
def rows():
    found = Rows()
    yield found
    found.close()


@pytest.mark.parametrize(
    "family",
    matrix.documented() if ON_TENSORFLOW else [*SOME, MORE[keras.backend.backend()]],
)
def test_a_row_of_the_table_is_what_is_found(rows, family):
    assert rows.row(family) == matrix.documented()[family]


@pytest.mark.one_backend
def test_the_table_has_every_family_and_nearly_all_works():
    found = matrix.documented()
    assert [*found] == [*FAMILIES, "Subclassed"]
    graphs = {name: found[name] for name in FAMILIES}
    assert len(graphs) >= 24
    everywhere = {*matrix.COLUMNS} - {*BY_GRAPH, *BY_CONFIG, "generate", "reload"}
    assert {"lora", "preset"} <= everywhere
    for family, cells in graphs.items():
        assert {cells[column] for column in everywhere} == {matrix.WORKS}, family
        assert cells["reload"].startswith(matrix.WORKS)
        assert cells["generate"] in (matrix.WORKS, "-")
    for column in BY_GRAPH:
        assert sum(cells[column] == matrix.WORKS for cells in graphs.values()) >= 16
    for column in BY_CONFIG:
        assert sum(cells[column] == matrix.WORKS for cells in graphs.values()) >= 24
        assert {found[family][column] for family in SEVEN} == {matrix.WORKS}
    assert sum(cells["reload"] == matrix.WORKS for cells in graphs.values()) >= 24
