// SPDX-License-Identifier: Apache-2.0
#include "bindings/c/mpi_module_loader.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

#include "bindings/c/table_transport.hpp"
#include "core/foreign_enum.hpp"

namespace gradsieve::c {
namespace {

constexpr char const* kModuleName = "libgsv_mpi.so";

/// The module beside this very library, or its bare name, which the system's loader looks up.
std::string default_path() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void const*>(&gsvCommInitMpi), &here) == 0) return kModuleName;
  std::string const library = here.dli_fname;
  std::size_t const slash = library.rfind('/');
  std::string const beside = library.substr(0, slash + 1) + kModuleName;
  return slash != std::string::npos && ::access(beside.c_str(), R_OK) == 0 ? beside : kModuleName;
}

std::string path_of(char const* given) {
  if (given != nullptr) return given;
  char const* const variable = std::getenv("GRADSIEVE_MPI_MODULE");
  return variable != nullptr && *variable != '\0' ? variable : default_path();
}

/// Never unloaded: MPI is not made to be, and failures keep sentences that live in the module.
gsvTransportModule_t load(std::string const& path) {
  // Global, because MPI's own plug-ins look there for the MPI that loads them.
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (module == nullptr) {
    throw Error(Code::io_error, std::string("gsvCommInitMpi: ") + ::dlerror() +
                                    "; expected the path of libgsv_mpi.so as module_path or in "
                                    "GRADSIEVE_MPI_MODULE");
  }
  void* const symbol = ::dlsym(module, "gsvMpiTransport");
  if (symbol == nullptr)
    throw Error(Code::io_error,
                "gsvCommInitMpi: '" + path + "' is no such module: it has no gsvMpiTransport");
  return reinterpret_cast<gsvTransportModule_t>(symbol);
}

}  // namespace

std::shared_ptr<Transport> make_module_transport(void const* communicator, bool is_fortran,
                                                 char const* path) {
  gsvTransportModule_t const module = load(path_of(path));
  gsvTransportTable table = GSV_INIT(gsvTransportTable);
  std::array<char, 1024> message{};
  Code const code =
      code_of(module(communicator, is_fortran ? 1 : 0, &table, message.data(), message.size()),
              Code::transport_error);
  if (code != Code::ok) throw Error(code, message.data());
  return std::make_shared<TableTransport>(table);
}

}  // namespace gradsieve::c
