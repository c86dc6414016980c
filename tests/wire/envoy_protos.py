"""Extracts the protobuf descriptors from an Envoy binary.

They are the very ones that this Envoy speaks, newer than any published copy.

    python envoy_protos.py ENVOY OUT.binpb [file.proto ...]
"""

import pathlib
import sys

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

# Imported so that the default pool has them: Envoy links them in another form.
from google.protobuf import any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2  # noqa: F401

RLS = "envoy/service/ratelimit/v3/rls.proto"

_FIELDS = descriptor_pb2.FileDescriptorProto.DESCRIPTOR.fields_by_number
_VARINT, _LENGTH = 0, 2


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _end(data, start):
    """The end of the descriptor that begins at `start`.

    Nothing states its length. But its fields ascend, so it ends before the
    first one that does not fit: the bytes after it are padding or the next name.
    """
    end, previous = start, 0
    while end < len(data):
        tag, at = _varint(data, end)
        number, wire = tag >> 3, tag & 7
        if number not in _FIELDS or number < previous or (previous == number == 1):
            break
        if wire not in (_VARINT, _LENGTH):
            break
        value, at = _varint(data, at)
        end, previous = at + (value if wire == _LENGTH else 0), number
    return end


def _embedded(data, name):
    """The descriptor of the file `name`, which begins with that name; None if it is not in `data`."""
    head = b"\x0a" + bytes([len(name)]) + name.encode()
    at = data.find(head)
    while at >= 0:
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(data[at : _end(data, at)])
            # The name alone also occurs as an import of other files.
            if file.package:
                return file
        except (DecodeError, IndexError):
            pass
        at = data.find(head, at + 1)
    return None


def descriptor_set(envoy, roots=(RLS,)):
    """The files `roots` and all their imports, imports first."""
    data = pathlib.Path(envoy).read_bytes()
    files = {}

    def visit(name):
        if name in files:
            return
        file = _embedded(data, name)
        if file is None:
            file = descriptor_pb2.FileDescriptorProto()
            descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
        files[name] = None  # Visited; its descriptor follows those of its imports.
        for imported in file.dependency:
            visit(imported)
        del files[name]
        files[name] = file

    for root in roots:
        visit(root)
    return descriptor_pb2.FileDescriptorSet(file=files.values())


if __name__ == "__main__":
    found = descriptor_set(sys.argv[1], sys.argv[3:] or (RLS,))
    pathlib.Path(sys.argv[2]).write_bytes(found.SerializeToString())
    print(f"{len(found.file)} files")
