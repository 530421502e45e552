# SPDX-License-Identifier: Apache-2.0
"""The declarations in ctypes say what gradsieve.h says."""

import ctypes
import re

import pytest
from gradsieve import _abi, _plugin_abi
from rank_launcher import ROOT

FOLDER = ROOT / "include" / "gradsieve"
HEADER = "".join((FOLDER / name).read_text() for name in ("gradsieve.h", "plugin.h"))
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
    "gsvCodecInfo": _plugin_abi.CodecInfo,
    "gsvPiece": _plugin_abi.Piece,
    "gsvRoundInfo": _plugin_abi.RoundInfo,
    "gsvStepWords": _plugin_abi.StepWords,
    "gsvCall": _plugin_abi.Call,
    "gsvBody": _plugin_abi.Body,
    "gsvPluginV1x": _plugin_abi.PluginV1x,
}
HANDLES = {f"gsv{name}_t" for name in ("Context", "Comm", "Hook", "Sparse", "Stream")}
SIZES = {"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "double": 8, "int": 4, "float": 4}


def members_of(name: str) -> list[tuple[str, int]]:
    """Name and size of each member of a struct of the header."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name}_t;", PLAIN, re.S)
    assert body, f"{name} is not in the header"
    found = []
    for member in filter(None, (part.strip() for part in body[1].split(";"))):
        function = re.match(r"[\w ]+?\s?\*?\s?\(\*(\w+)\)", member) or re.match(
            r"(?:\w+ )+(?:const)?\*? ?\(\*(\w+)\)", member
        )
        if function:
            found.append((function[1], 8))
            continue
        kind, variable, count = re.match(r"(.*?)(\w+)(?:\[(\d+)\])?$", member, re.S).groups()
        is_pointer = "*" in kind or kind.split()[-1] in HANDLES
        size = 8 if is_pointer else SIZES[kind.split()[-1]]
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
        expected = 8 if is_pointer or kind in HANDLES else SIZES.get(kind, 4)  # the rest are enums
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
