# SPDX-License-Identifier: Apache-2.0
"""The Python half of python_codec.c: a codec's functions at a given address."""

import ctypes
import importlib.util
import os

from gradsieve import _plugin_abi, codec


def fill_in(address):
    path, name = os.environ["GRADSIEVE_TEST_CODEC"].rsplit(":", 1)
    source = importlib.util.spec_from_file_location("codecs_under_test", path)
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    judged = getattr(module, name)()
    codec.register(judged)  # which keeps it, and refuses what no codec may say of itself
    table = codec._tables[judged.name].struct
    ctypes.memmove(address, ctypes.addressof(table), ctypes.sizeof(_plugin_abi.PluginV1x))
