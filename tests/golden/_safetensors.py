"""Just enough of safetensors to edit a file: a length, a JSON header, one buffer. Standard library only."""

import json
import math
import struct

CODES = {"F32": "f", "F64": "d", "I32": "i", "I64": "q"}


class Tensors:
    """The tensors of a file: name -> (dtype, shape, list of values)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            content = file.read()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        self.metadata = header.pop("__metadata__", {})
        self.entries = {}
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            code = CODES[entry["dtype"]]
            values = list(struct.unpack_from(f"<{(end - begin) // struct.calcsize(code)}{code}", content, begin))
            self.entries[name] = (entry["dtype"], entry["shape"], values)

    def __contains__(self, name):
        return name in self.entries

    def names(self, *parts):
        """Names that contain every part, sorted."""
        return sorted(name for name in self.entries if all(part in name for part in parts))

    def values(self, name):
        return self.entries[name][2]

    def shape(self, name):
        return self.entries[name][1]

    def set(self, name, values=None, shape=None, dtype=None):
        """A new tensor, or parts of an old one."""
        old_dtype, old_shape, old_values = self.entries.get(name, ("F32", None, None))
        values = old_values if values is None else values
        shape = shape or old_shape or [len(values)]
        assert math.prod(shape) == len(values), (name, shape, len(values))
        self.entries[name] = (dtype or old_dtype, shape, values)

    def drop(self, name):
        del self.entries[name]

    def write(self, path):
        header, buffer = {"__metadata__": self.metadata}, b""
        # Wide elements first, so that every tensor is aligned.
        for name in sorted(self.entries, key=lambda n: (-struct.calcsize(CODES[self.entries[n][0]]), n)):
            dtype, shape, values = self.entries[name]
            data = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(buffer), len(buffer) + len(data)]}
            buffer += data
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + buffer)
