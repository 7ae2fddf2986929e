"""The simulator does what TensorFlow's own allocator does, address by address."""

import os
import random
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.units import KIB, MIB

pytestmark = pytest.mark.one_backend

SOURCE = Path(__file__).with_name("oracle.cc")
OPERATIONS = 5_000
CONFIGURATIONS = 20


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build the oracle with")
    tensorflow = Path(find_spec("tensorflow").origin).parent
    program = tmp_path_factory.mktemp("oracle") / "oracle"
    subprocess.run(
        [
            *(compiler, "-std=c++17", "-O1", "-w", f"-I{tensorflow}/include"),
            *(str(SOURCE), "-o", str(program), f"-L{tensorflow}"),
            *("-l:libtensorflow_framework.so.2", f"-Wl,-rpath,{tensorflow}"),
        ],
        check=True,
    )
    return program


def random_policy(rng):
    limit = rng.choice([8, 64, 256, 1024]) * MIB + rng.randrange(5000)
    return PoolPolicy(limit_bytes=limit, growth=rng.random() < 0.7)


def random_size(rng, policy):
    largest = policy.limit_bytes // rng.choice([3, 10, 100, 4000])
    return max(1, int(largest ** rng.random()))


def simulate(policy, rng):
    """Run random requests; return the oracle's input and what it should print."""
    allocator, alive, asked, answers = BFCAllocator(policy), [], [], []
    for _ in range(OPERATIONS):
        if alive and rng.random() < 0.45:
            place = rng.randrange(len(alive))
            address = alive.pop(place)
            allocator.free(address)
            asked.append(f"f {address}")
            continue
        size = random_size(rng, policy)
        address = allocator.allocate(size)
        asked.append(f"a {size}")
        answers.append(address or 0)
        if address is not None:
            alive.append(address)
    end = [allocator.in_use_bytes, allocator.peak_bytes, allocator.pool_bytes]
    return asked, answers, end


def test_a_hundred_thousand_requests_get_the_oracles_addresses(oracle):
    refused = 0
    for seed in range(CONFIGURATIONS):
        rng = random.Random(seed)
        policy = random_policy(rng)
        asked, answers, end = simulate(policy, rng)
        head = f"{policy.limit_bytes} {policy.growth:d}"
        finished = subprocess.run(
            [oracle],
            input="\n".join([head, *asked, ""]),
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        *printed, last = finished.stdout.splitlines()
        assert list(map(int, printed)) == answers, policy
        assert list(map(int, last.split())) == end, policy
        refused += answers.count(0)
    assert refused > 100, "the requests must run the pool full now and then"


def test_the_waste_of_a_doubled_region_is_the_whole_region():
    # 88,980,776 bytes of one XLA step took 128 MiB on a real device.
    allocator = BFCAllocator(PoolPolicy(limit_bytes=1024 * MIB))
    allocator.allocate(88_980_776)
    assert allocator.in_use_bytes == allocator.pool_bytes == 128 * MIB


@pytest.mark.parametrize(
    ("wasted", "in_use"), [(128 * MIB - 256, 328), (128 * MIB, 200)]
)
def test_a_chunk_is_split_from_128_mib_of_waste_on(wasted, in_use):
    limit = 200 * MIB + wasted
    allocator = BFCAllocator(PoolPolicy(limit_bytes=limit, growth=False))
    allocator.allocate(200 * MIB)
    assert -(-allocator.in_use_bytes // MIB) == in_use


def test_free_memory_in_small_pieces_serves_no_large_request():
    allocator = BFCAllocator(PoolPolicy(limit_bytes=MIB, growth=False))
    addresses = [allocator.allocate(64 * KIB) for _ in range(16)]
    for address in addresses[::2]:
        allocator.free(address)
    assert allocator.in_use_bytes == MIB // 2
    assert allocator.largest_free_bytes == 64 * KIB
    assert allocator.fragmentation == 7 / 8
    assert allocator.allocate(65 * KIB) is None
