# SPDX-License-Identifier: Apache-2.0
"""The declarations in ctypes say what gradsieve.h says."""

import ctypes
import re

import pytest
from gradsieve import _abi
from rank_launcher import ROOT

HEADER = (ROOT / "include" / "gradsieve" / "gradsieve.h").read_text()
PLAIN = re.sub(r"//[^\n]*", "", HEADER)

STRUCTS = {
    "gsvContextConfig": _abi.ContextConfig,
    "gsvRequest": _abi.Request,
    "gsvTransportTable": _abi.TransportTable,
    "gsvSpecInfo": _abi.SpecInfo,
    "gsvEncodeOptions": _abi.EncodeOptions,
    "gsvRule": _abi.Rule,
    "gsvTensorDesc": _abi.TensorDesc,
    "gsvBucketDesc": _abi.BucketDesc,
    "gsvHookOptions": _abi.HookOptions,
    "gsvEvent": _abi.Event,
    "gsvStepResult": _abi.StepResult,
    "gsvFailure": _abi.Failure,
    "gsvStats": _abi.Stats,
    "gsvSparseOptions": _abi.SparseOptions,
}
SIZES = {"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "double": 8, "int": 4, "float": 4}


def members_of(name: str) -> list[tuple[str, int]]:
    """Name and size of each member of a struct of the header."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name}_t;", PLAIN, re.S)
    assert body, f"{name} is not in the header"
    found = []
    for member in filter(None, (part.strip() for part in body[1].split(";"))):
        function = re.match(r"\w+ \(\*(\w+)\)", member)
        if function:
            found.append((function[1], 8))
            continue
        kind, variable, count = re.match(r"(.*?)(\w+)(?:\[(\d+)\])?$", member, re.S).groups()
        size = 8 if "*" in kind else SIZES[kind.split()[-1]]
        found.append((variable, size * int(count or 1)))
    return found


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_is_as_in_the_header(name):
    struct = STRUCTS[name]
    ours = [(member, ctypes.sizeof(kind)) for member, kind, *_ in struct._fields_]
    assert ours == members_of(name)


def parameters_of(name: str) -> list[str]:
    found = re.search(rf"GSV_API [\w* ]+? {name}\((.*?)\);", PLAIN, re.S)
    assert found, f"{name} is not in the header"
    listed = " ".join(found[1].split())
    return [] if listed == "void" else listed.split(", ")


@pytest.mark.parametrize("name", _abi.FUNCTIONS)
def test_function_takes_as_many_of_the_same_size(name):
    declared = parameters_of(name)
    arguments = _abi.FUNCTIONS[name][1]
    assert len(arguments) == len(declared), declared
    for argument, text in zip(arguments, declared):
        is_pointer = "*" in text
        kind = text.split()[0]
        is_handle = kind in {f"gsv{x}_t" for x in ("Context", "Comm", "Hook", "Sparse", "Stream")}
        expected = 8 if is_pointer or is_handle else SIZES.get(kind, 4)  # the rest are enums
        assert ctypes.sizeof(argument) == expected, text
        assert (argument is ctypes.c_float) == (kind == "float" and not is_pointer), text


def test_results_are_numbered_as_in_the_header():
    for ours, theirs in {
        "SUCCESS": "gsvSuccess",
        "INVALID_ARGUMENT": "gsvInvalidArgument",
        "UNSUPPORTED": "gsvUnsupported",
        "CAPACITY_EXCEEDED": "gsvCapacityExceeded",
        "TIMEOUT": "gsvTimeout",
        "ABORTED": "gsvAborted",
        "TRANSPORT_ERROR": "gsvTransportError",
    }.items():
        number = re.search(rf"\b{theirs} = (\d+)", PLAIN)
        assert number and getattr(_abi, ours) == int(number[1])
