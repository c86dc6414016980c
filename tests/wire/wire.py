"""Proves that Envoy's own messages survive our types, with every field set.

    python wire.py write  ENVOY DIR
        puts messages built with Envoy's descriptors into DIR/sent, as
        `<full name>.<n>.bin`
    python wire.py verify ENVOY DIR
        compares them with DIR/returned, which holds the same files decoded and
        encoded again, and with what DIR/wire.binpb and DIR/text.binpb, our
        descriptor sets, make of them
"""

import collections
import difflib
import itertools
import pathlib
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.unknown_fields import UnknownFieldSet

import envoy_protos

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"

# Intended deviations: our fields have `bytes` where Envoy's have `string`.
ENTRY = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry"
BYTES_FOR_STRING = {f"{ENTRY}.key", f"{ENTRY}.value"}

# Struct contains itself; below this depth its values are scalars.
DEPTH = 8

SIGNED_32, SIGNED_64 = [1, 2**31 - 1, -(2**31)], [1, 2**63 - 1, -(2**63)]
UNSIGNED_32, UNSIGNED_64 = [1, 2**32 - 1], [1, 2**64 - 1]
SCALARS = {
    Field.TYPE_BOOL: [True],
    Field.TYPE_BYTES: [b"b", bytes(range(256))],
    Field.TYPE_DOUBLE: [0.5, sys.float_info.max, -sys.float_info.max, sys.float_info.min, float("inf")],
    Field.TYPE_FIXED32: UNSIGNED_32,
    Field.TYPE_FIXED64: UNSIGNED_64,
    Field.TYPE_FLOAT: [0.5, float("inf")],
    Field.TYPE_INT32: SIGNED_32,
    Field.TYPE_INT64: SIGNED_64,
    Field.TYPE_SFIXED32: SIGNED_32,
    Field.TYPE_SFIXED64: SIGNED_64,
    Field.TYPE_SINT32: SIGNED_32,
    Field.TYPE_SINT64: SIGNED_64,
    Field.TYPE_STRING: ["s", "\0 ä € 𝄞", "long " * 100],
    Field.TYPE_UINT32: UNSIGNED_32,
    Field.TYPE_UINT64: UNSIGNED_64,
}
# Proto3 enums are open: a number that is new to the reader has to survive too.
NEW_IN_ENUM = 77


def pool(files):
    made = descriptor_pool.DescriptorPool()
    for file in files.file:
        made.AddSerializedFile(file.SerializeToString())
    return made


def reachable(service):
    """The messages and enums that the service's methods use, also indirectly, by full name."""
    found = {}

    def visit(kind):
        if kind.full_name not in found:
            found[kind.full_name] = kind
            for field in getattr(kind, "fields", ()):
                for leads_to in (field.message_type, field.enum_type):
                    if leads_to is not None:
                        visit(leads_to)

    for method in service.methods:
        visit(method.input_type)
        visit(method.output_type)
    return found


# Schemas


def schema(service):
    """Everything that determines the wire format, as lines for messages of failures."""
    for method in service.methods:
        streams = method.client_streaming, method.server_streaming
        yield f"{method.full_name}: {method.input_type.full_name} -> {method.output_type.full_name}, streams {streams}"
    names = {number: name for name, number in vars(Field).items() if name.startswith("TYPE_")}
    for name, kind in reachable(service).items():
        for value in getattr(kind, "values", ()):
            yield f"{name}.{value.name} = {value.number}"
        for field in getattr(kind, "fields", ()):
            leads_to = field.message_type or field.enum_type
            yield " ".join(
                (
                    f"{field.full_name} = {field.number}:",
                    "repeated" if field.is_repeated else "single",
                    "with presence" if field.has_presence else "without presence",
                    names[field.type],
                    leads_to.full_name if leads_to else "",
                    f"in oneof {field.containing_oneof.name}" if field.containing_oneof else "",
                )
            ).strip()


def schema_differences(envoy, ours, as_bytes):
    theirs = set(schema(envoy))
    for name in as_bytes:
        line = next(line for line in theirs if line.startswith(f"{name} = "))
        theirs.remove(line)
        theirs.add(line.replace("TYPE_STRING", "TYPE_BYTES"))
    mine = set(schema(ours))
    yield from (f"Envoy has, and we lack: {line}" for line in sorted(theirs - mine))
    yield from (f"we have, and Envoy lacks: {line}" for line in sorted(mine - theirs))


# Messages


def is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def recursive(field):
    return field.message_type is not None and field.message_type.full_name in (
        "google.protobuf.Struct",
        "google.protobuf.ListValue",
    )


def candidates(field, depth):
    """Values for one field, or for one element of a repeated field."""
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    if field.enum_type is not None:
        values = [value.number for value in field.enum_type.values] + [NEW_IN_ENUM]
    else:
        zero = type(SCALARS[field.type][0])()
        values = [zero, *SCALARS[field.type]]
    # In a field without presence, zero is the same as absent.
    return [value for value in values if value or field.has_presence or field.is_repeated]


def fill(message, field, values):
    """Sets a single field to the one value, and a repeated field to all."""
    if is_map(field):
        of_map = getattr(message, field.name)
        value_field = field.message_type.fields_by_name["value"]
        for n, value in enumerate(values):
            key = f"key {n}"
            if value_field.message_type is not None:
                of_map[key].CopyFrom(value.value)
            else:
                of_map[key] = value.value
    elif field.is_repeated:
        getattr(message, field.name).extend(values)
    elif field.message_type is not None:
        # SetInParent: an empty message that is present differs from an absent one.
        child = getattr(message, field.name)
        child.SetInParent()
        child.CopyFrom(values[0])
    else:
        setattr(message, field.name, values[0])


def messages(kind, depth=DEPTH):
    """An empty message, and messages with every field set, enough to use every candidate value once."""
    make = message_factory.GetMessageClass(kind)
    # Only one member of a oneof can be set, so all members share one slot.
    slots = collections.defaultdict(list)
    for field in kind.fields:
        if depth <= 0 and recursive(field):
            continue
        values = candidates(field, depth)
        choices = [values] if field.is_repeated else [[value] for value in values]
        slot = field.containing_oneof.name if field.containing_oneof else field.name
        slots[slot] += [(field, choice) for choice in choices]
    made = [make()]
    for n in range(max(map(len, slots.values()), default=0)):
        message = make()
        for choices in slots.values():
            fill(message, *choices[n % len(choices)])
        made.append(message)
    return made


def children(field, value):
    """The messages that a field holds."""
    if is_map(field):
        return value.values() if field.message_type.fields_by_name["value"].message_type else ()
    if field.message_type is None:
        return ()
    return value if field.is_repeated else (value,)


def walk(message, path=""):
    """The message and all messages in it, each with its path."""
    yield path, message
    for field, value in message.ListFields():
        for child in children(field, value):
            yield from walk(child, f"{path}.{field.name}")


def unknown(message):
    """Paths of the fields that the message's type does not know."""
    for path, inner in walk(message):
        yield from (f"{path}.{field.field_number}" for field in UnknownFieldSet(inner))


def missed(kinds, sent):
    """The fields and enum values that no message has."""
    wanted, seen = set(), set()
    for name, kind in kinds.items():
        if hasattr(kind, "values"):
            # On the wire, zero is the same as absent.
            wanted.update((name, value.number) for value in kind.values if value.number)
        elif not kind.GetOptions().map_entry:
            wanted.update(field.full_name for field in kind.fields)
    for message in sent:
        for _, inner in walk(message):
            for field, value in inner.ListFields():
                seen.add(field.full_name)
                if field.enum_type is not None:
                    numbers = value if field.is_repeated else [value]
                    seen.update((field.enum_type.full_name, number) for number in numbers)
    return wanted - seen


def difference(sent, back):
    lines = difflib.unified_diff(str(sent).splitlines(), str(back).splitlines(), "sent", "back", lineterm="", n=1)
    return "\n".join(itertools.islice(lines, 40))


def canonical(message):
    return message.SerializeToString(deterministic=True)


# Modes


def write(envoy, directory):
    sent = directory / "sent"
    sent.mkdir()
    kinds = reachable(pool(envoy_protos.descriptor_set(envoy)).FindServiceByName(SERVICE))
    made = {
        f"{name}.{n}.bin": message
        for name, kind in kinds.items()
        # Google's messages are covered by the fields that use them.
        if not name.startswith("google.") and hasattr(kind, "fields")
        for n, message in enumerate(messages(kind))
    }
    if missing := missed(kinds, made.values()):
        sys.exit(f"no message has {missing}")
    for name, message in made.items():
        (sent / name).write_bytes(canonical(message))
    print(f"{len(made)} messages")


def verify(envoy, directory):
    theirs = pool(envoy_protos.descriptor_set(envoy))
    failures = []
    ours = {}
    for name, as_bytes in (("wire.binpb", BYTES_FOR_STRING), ("text.binpb", ())):
        files = descriptor_pb2.FileDescriptorSet.FromString((directory / name).read_bytes())
        ours[name] = pool(files)
        differences = schema_differences(
            theirs.FindServiceByName(SERVICE), ours[name].FindServiceByName(SERVICE), as_bytes
        )
        failures += (f"{name}: {difference}" for difference in differences)

    sent = sorted(path.name for path in (directory / "sent").iterdir())
    returned = sorted(path.name for path in (directory / "returned").iterdir())
    if not sent or sent != returned:
        failures.append(f"{len(sent)} messages sent, {len(returned)} returned")
        returned = []

    for name in returned:
        full_name = name.rsplit(".", 2)[0]

        def cls(pool):
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))

        def check(what, data):
            back = cls(theirs).FromString(data)
            failures.extend(f"{name}: unknown field {path} {what}" for path in unknown(back))
            if canonical(back) != canonical(original):
                failures.append(f"{name}: differs {what}\n{difference(original, back)}")

        data = (directory / "sent" / name).read_bytes()
        original = cls(theirs).FromString(data)
        check("from Rust", (directory / "returned" / name).read_bytes())
        for files, pool_of in ours.items():
            message = cls(pool_of).FromString(data)
            failures += (f"{name}: field {path} is unknown to {files}" for path in unknown(message))
            check(f"through {files}", message.SerializeToString())

    if failures:
        sys.exit("\n".join(failures))
    print(f"{len(returned)} messages survive")


if __name__ == "__main__":
    mode, envoy_binary, where = sys.argv[1:]
    {"write": write, "verify": verify}[mode](envoy_binary, pathlib.Path(where))
