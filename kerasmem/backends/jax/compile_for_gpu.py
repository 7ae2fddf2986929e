"""Compiles a step for a GPU that is not there. A script, which imports JAX alone.

`jax.experimental.topologies` gives a device that exists as a description; to compile
for it runs XLA's whole GPU compiler on the CPU: layouts, fusions, schedule, and the
assignment of buffers, which is what is wanted. The plug-in of JAX for CUDA brings that
compiler, and needs no driver, no cuDNN and no cuBLAS for it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jax.experimental import topologies


def main(folder: Path) -> None:
    """Compile the program in a folder, and write down how large its parts are.

    Args:
        folder: it has `order.json` with the name of the program's file, its kind
            (`"hlo"`: a serialized `HloModuleProto`, `"stablehlo"`: MLIR bytecode), the
            text of the target's description and the number of devices. The plan itself
            XLA writes where its flag `--xla_dump_to` says.
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
    # Private: JAX has a public way to compile for a description only for functions of
    # its own, and TensorFlow's programs come without one.
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
    """Let the readers of a copy read what was copied: StableHLO knows no `mhlo.copy`.

    TensorFlow copies what is the result of a step, to lay it out as it came.
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
