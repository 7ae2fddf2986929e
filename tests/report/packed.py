"""Reads the numbers in a page, as its script does, but on its own."""

import base64
import json
import re
import struct
import zlib

import numpy as np


def packed(html):
    """Return what the scripts of the page are given."""
    text = re.search(r'<script type="text/plain" id="packed">([^<]*)</script>', html)[1]
    return unpacked(text)


def unpacked(text):
    whole = zlib.decompress(base64.b64decode(text))
    (length,) = struct.unpack("<I", whole[:4])
    header = json.loads(whole[4 : 4 + length])
    columns = []
    for column in header["columns"]:
        found = np.frombuffer(
            whole, column["type"], column["length"], 4 + length + column["at"]
        )
        columns.append(found.astype(float).cumsum() if column["rising"] else found)
    return _resolved(header["content"], columns)


def _resolved(value, columns):
    if isinstance(value, list):
        return [_resolved(item, columns) for item in value]
    if isinstance(value, dict):
        if set(value) == {"column"}:
            return columns[value["column"]].tolist()
        return {key: _resolved(item, columns) for key, item in value.items()}
    return value
