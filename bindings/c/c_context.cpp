// SPDX-License-Identifier: Apache-2.0
// Version, errors and contexts.
#include <string_view>

#include "bindings/c/guard.hpp"
#include "bindings/c/handles.hpp"
#include "compressors/load_plugin.hpp"

#define GSV_TEXT_(number) #number
#define GSV_TEXT(number) GSV_TEXT_(number)
#define GSV_VERSION_TEXT \
  GSV_TEXT(GSV_VERSION_MAJOR) "." GSV_TEXT(GSV_VERSION_MINOR) "." GSV_TEXT(GSV_VERSION_PATCH)
static_assert(std::string_view(GSV_VERSION_TEXT) == GSV_PROJECT_VERSION,
              "gradsieve.h and CMakeLists.txt name different versions");

using namespace gradsieve;

extern "C" {

char const* gsvGetResultName(gsvResult_t result) {
  return code_name(static_cast<Code>(number_of(result))).data();
}

char const* gsvGetLastError(void) { return c::last_error(); }

gsvResult_t gsvGetVersion(int* version) {
  return c::guard([&] {
    c::required(version, "version") =
        10000 * GSV_VERSION_MAJOR + 100 * GSV_VERSION_MINOR + GSV_VERSION_PATCH;
  });
}

char const* gsvGetVersionText(void) { return GSV_VERSION_TEXT; }

gsvResult_t gsvContextCreate(gsvContext_t* context, gsvContextConfig_t const* config) {
  return c::guard([&] {
    c::required(context, "context");
    gsvContextConfig const given = c::read(config, "config");
    auto made = std::make_unique<gsvContext>();
    made->seed = given.seed;
    if (given.num_threads != 0)
      made->num_threads =
          static_cast<int>(c::checked_choice(given.num_threads, 4096, "num_threads"));
    gsvBackend_t const backend = c::choice(given.backend, gsvBackendCuda, "backend");
#ifndef GRADSIEVE_HAVE_CUDA
    if (backend == gsvBackendCuda)
      throw Error(Code::not_built,
                  "the backend is cuda, which this build does not have; it has: "
                  "ref, cpu");
#endif
    if (backend == gsvBackendRef) made->backend = Backend::ref;
    if (backend == gsvBackendCuda) made->backend = Backend::cuda;
    made->registry = std::make_shared<Registry>(builtin_registry());
    *context = made.release();
  });
}

gsvResult_t gsvContextDestroy(gsvContext_t context) {
  return c::guard([&] { delete context; });
}

gsvResult_t gsvContextLoadPlugin(gsvContext_t context, char const* path, char* name,
                                 uint64_t capacity, uint64_t* length) {
  return c::guard([&] {
    gsvContext& ctx = c::required(context, "context");
    auto extended = std::make_shared<Registry>(*ctx.registry);
    std::string const loaded = load_plugin(*extended, c::required_text(path, "path"));
    ctx.registry = std::move(extended);
    if (name != nullptr || length != nullptr) c::write_text(loaded, name, capacity, length);
  });
}

gsvResult_t gsvContextAddPlugin(gsvContext_t context, void const* plugin, char* name,
                                uint64_t capacity, uint64_t* length) {
  return c::guard([&] {
    gsvContext& ctx = c::required(context, "context");
    if (plugin == nullptr) c::throw_null("plugin");
    auto extended = std::make_shared<Registry>(*ctx.registry);
    std::string const added = add_plugin(*extended, plugin);
    ctx.registry = std::move(extended);
    if (name != nullptr || length != nullptr) c::write_text(added, name, capacity, length);
  });
}

}  // extern "C"
