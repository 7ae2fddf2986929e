"""A script that compiles a step for a GPU that is not present. Imports only JAX.

`jax.experimental.topologies` provides a device from a description. Compiling for that
device runs XLA's GPU compiler on the CPU, including layouts, fusions, schedule and
buffer assignment. The compiler is part of JAX's CUDA plug-in and needs no driver, cuDNN
or cuBLAS.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jax.experimental import topologies


def main(folder: Path) -> None:
    """Compile the program in a folder and write its sizes to `answer.json`.

    `order.json` has the file name of the program, its kind, the target description and
    the number of devices. The kind is `"hlo"` (a serialized `HloModuleProto`) or
    `"stablehlo"` (MLIR bytecode). XLA writes the plan to the folder of `--xla_dump_to`.
    """
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    topology = topologies.get_topology_desc(
        platform="cuda",
        target_config=order["target"],
        topology=f"1x1x{order['devices']}",
    )
    program = (folder / order["program"]).read_bytes()
    executable = _compiled(program, order["kind"], topology.devices)
    sizes = executable.get_compiled_memory_stats()
    answer = {
        "argument_bytes": sizes.argument_size_in_bytes,
        "output_bytes": sizes.output_size_in_bytes,
        "alias_bytes": sizes.alias_size_in_bytes,
        "temporary_bytes": sizes.temp_size_in_bytes,
    }
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _compiled(program: bytes, kind: str, devices: list[Any]) -> Any:
    # Private: JAX's public API compiles only JAX functions for a description, not
    # TensorFlow programs.
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import (
        _jax,  # pyright: ignore[reportPrivateImportUsage]
        xla_client,  # pyright: ignore[reportPrivateImportUsage]
    )
    from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]

    count = len(devices)
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=count,
        device_assignment=np.arange(count).reshape(1, count),
    )
    with mlir.make_ir_context():
        if kind == "hlo":
            module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(program))
            _remove_copies(module)
        else:
            module = ir.Module.parse(program)
        return devices[0].client.compile(
            module,
            executable_devices=xla_client.DeviceList(tuple(devices)),
            compile_options=options,
        )


def _remove_copies(module: Any) -> None:
    """Replace copies by their operands, because StableHLO has no `mhlo.copy`.

    TensorFlow copies the results of a step to restore their layout.
    """
    waiting, copies = [module.operation], []
    while waiting:
        for region in waiting.pop().regions:
            for block in region.blocks:
                for view in block.operations:
                    if view.operation.name == "mhlo.copy":
                        copies.append(view.operation)
                    waiting.append(view.operation)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
