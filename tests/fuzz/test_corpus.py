"""What broke once does not break again; and a seed always means the same case."""

import json
from pathlib import Path

import pytest

from tests.fuzz.driver import Child
from tests.fuzz.graphs import program, worker
from tests.fuzz.outcome import Outcome

CORPUS = Path(__file__).parent / "corpus"


READ_AS_GRAPHS = {"channels", "factorize", "int8-static"}
"""Laws that models broke which were misread, before a backend computed anything."""


def cases(lane):
    found = []
    for file in sorted(CORPUS.glob(f"{lane}-*.json")):
        case = json.loads(file.read_text())["case"]
        is_of_one = lane != "graphs" or case["law"] in READ_AS_GRAPHS
        marks = [pytest.mark.one_backend] if is_of_one else []
        found.append(pytest.param(case, id=file.stem, marks=marks))
    return found


@pytest.mark.parametrize("case", cases("graphs"))
def test_a_graph_that_once_broke_a_law_keeps_it(case, backend):
    outcome = worker.run(case)
    # torch has no slices with a step below zero, which one of them takes.
    assert outcome.word != "unfit" or backend == "torch"
    assert not outcome.failed, f"{outcome.reason}\n{outcome.trace}"


READING = [("files", case) for case in cases("files")]
READING += [("states", case) for case in cases("states")]


@pytest.fixture(scope="module")
def children():
    lanes = {lane for lane, _ in READING}
    children = {lane: Child(f"tests.fuzz.{lane}.worker") for lane in lanes}
    yield children
    for child in children.values():
        child.close()


@pytest.mark.parametrize(
    ("lane", "case"),
    [
        pytest.param(lane, *case.values, id=case.id, marks=case.marks)
        for lane, case in READING
    ],
)
def test_input_that_once_did_harm_does_none(children, lane, case):
    answer = children[lane].run(case)
    assert not Outcome(answer["word"]).failed, answer["reason"]


@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask")
@pytest.mark.one_backend
def test_a_seed_is_one_program_and_any_of_its_steps_may_be_skipped():
    made = program.generate(11)
    assert made == program.generate(11)
    assert len(made["steps"]) > 2
    for number in range(len(made["steps"])):
        steps = list(made["steps"])
        steps[number] = [steps[number][0], program.SKIP, *steps[number][2:]]
        inputs, outputs = program.structures(made | {"steps": steps})
        assert inputs is not None
        assert outputs is not None


@pytest.mark.one_backend
def test_there_are_more_than_ninety_kinds_of_operations_and_they_are_drawn():
    drawn = set()
    for seed in range(40):
        drawn |= {step[1] for step in program.generate(seed)["steps"]}
    assert len(program.KINDS) > 90
    assert len(drawn) > 60
