"""What a LiteRT file keeps in RAM whatever goes through it."""

from kerasmem.files.litert.package import litert_module


def constant_bytes(content: bytes) -> int:
    """Return the bytes of the constants of a LiteRT file: weights and shapes.

    Args:
        content: the bytes of the file.

    Raises:
        ConfigError: if `ai-edge-litert` is not installed.
    """
    model = litert_module("schema_py_generated").ModelT.InitFromPackedBuf(content, 0)
    used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    buffers = (model.buffers[number].data for number in used)
    return sum(len(data) for data in buffers if data is not None)
