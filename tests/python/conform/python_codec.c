// SPDX-License-Identifier: Apache-2.0
// A plug-in whose codec is written in Python, for the conformance suite: it starts an interpreter,
// which runs GRADSIEVE_TEST_CODEC (a file and the name of a class in it) and fills in the table.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "gradsieve/plugin.h"

__attribute__((visibility("default"))) gsvPluginV1x_t gsv_plugin_v1x;

static void* function(void* library, char const* name) {
  void* const found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "python_codec: %s\n", dlerror());
    exit(1);
  }
  return found;
}

__attribute__((constructor)) static void fill_in(void) {
  void* const library = dlopen(PYTHON_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    fprintf(stderr, "python_codec: %s\n", dlerror());
    exit(1);
  }
  void (*initialize)(int) = (void (*)(int))function(library, "Py_InitializeEx");
  int (*run)(char const*) = (int (*)(char const*))function(library, "PyRun_SimpleString");
  void* (*let_go)(void) = (void* (*)(void))function(library, "PyEval_SaveThread");
  initialize(0);
  char line[120];
  snprintf(line, sizeof line, "import python_codec; python_codec.fill_in(%llu)",
           (unsigned long long)(uintptr_t)&gsv_plugin_v1x);
  if (run(line) != 0) exit(1);
  let_go();
}
