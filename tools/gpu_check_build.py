# SPDX-License-Identifier: Apache-2.0
"""How tools/gpu_check comes to programs: from a build folder, from CMake, or from nvcc alone."""
import concurrent.futures
import json
import os
import pathlib
import platform
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = "gradsieve-gpu-bench"
LEAST_CMAKE = (3, 25)
HOST_FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off"]
# Those of cmake/gsv_cuda.cmake: kernels give the bits of ref.
DEVICE_FLAGS = ["-std=c++20", "-O2", "--fmad=false", "-ftz=false", "-prec-div=true",
                "-prec-sqrt=true", "--expt-relaxed-constexpr", "-lineinfo",
                "-Xcompiler=-ffp-contract=off"]
# Those of cmake/gsv_functions.cmake.
AVX2_FLAGS = ["-mavx2", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"]
AVX512_FLAGS = [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vbmi", "vbmi2")]
SIMD_FLAGS = {"portable": [], "avx2": AVX2_FLAGS, "avx512": AVX2_FLAGS + AVX512_FLAGS}
LAUNCHER_OF_EMULATOR = "cudasim-run"
EMULATED = "emulated"  # in place of an architecture
# What only the whole library has, and takes other libraries for. NCCL is taken where it is found.
LEFT_OUT = ("MPI", "TORCH", "BENCH", "TOOLS", "PYTHON")


def tool(name):
    """The path of a program of the toolkit, or None."""
    return shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")


class Programs:
    """What there is to run. `runner` precedes a command that needs a device."""

    def __init__(self, folder):
        self.folder = folder
        self.bench = None
        self.tests = []  # (name, command)
        self.runner = []
        self.notes = []


def num_tests(root=ROOT):
    files = sorted((root / "tests").rglob("cuda_*_test.cpp"))
    pattern = re.compile(r"^TEST(?:_F|_P)?\(", re.M)
    return sum(len(pattern.findall(file.read_text(encoding="utf-8"))) for file in files)


def kernels_without_row(programs, log, root=ROOT):
    """Kernels that the lists declare and the benchmark does not time."""
    _, text = log.run([*programs.runner, programs.bench, "--list"], 60, quiet=True)
    timed = {re.match(r"\w*", line)[0] for line in text.splitlines()}
    declared = []
    for name in ("ops.hpp", "many_ops.hpp", "many_sparse_ops.hpp"):
        text = (root / "kernels" / name).read_text(encoding="utf-8")
        macro = re.search(r"#define GRADSIEVE_KERNELS_DECLARED_HERE(.*?[^\\])\n", text, re.S)
        declared += re.findall(r"\w+Fn (\w+)", macro[1]) if macro else [f"none found in {name}"]
    timed.add("compensate_take")  # two launches that are timed
    return [name for name in declared if name not in timed]


def ctests(folder, log):
    """The tests of label cuda: name -> command."""
    if shutil.which("ctest") is None:
        return {}
    command = ["ctest", "--show-only=json-v1", "-L", "cuda"]
    status, text = log.run(command, 60, cwd=folder, quiet=True)
    try:
        tests = json.loads(text)["tests"] if status == 0 else []
    except ValueError:
        tests = []
    return {test["name"]: test.get("command", []) for test in tests}


def from_folder(folder, log):
    folder = pathlib.Path(folder).resolve()
    programs = Programs(folder)
    places = (folder / "bin" / BENCH, folder / BENCH)
    programs.bench = next((place for place in places if place.is_file()), None)
    for name, command in ctests(folder, log).items():
        is_program = any(pathlib.Path(part).parent == folder / "tests" for part in command)
        if is_program and not name.startswith("tools."):
            programs.tests.append((name, command))
            programs.runner = [p for p in command if p.endswith("/" + LAUNCHER_OF_EMULATOR)][:1]
    if (folder / "cuda_tests").is_file():
        programs.tests.append(("cuda_tests", [str(folder / "cuda_tests")]))
    return programs


# --- CMake ---------------------------------------------------------------------------------------

def cmake_is_new_enough(log):
    _, text = log.run(["cmake", "--version"], 20, quiet=True)
    found = re.search(r"version (\d+)\.(\d+)", text)
    return found is not None and (int(found[1]), int(found[2])) >= LEAST_CMAKE


def nccl_header_of_torch(python, log):
    """The folder of nccl.h that came with torch, or ""."""
    code = "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])"
    status, text = log.run([python, "-c", code], 20, quiet=True)
    folder = pathlib.Path(text.strip()) / "include"
    return str(folder) if status == 0 and (folder / "nccl.h").is_file() else ""


def with_cmake(folder, seconds, log, cccl, arch, python):
    """Programs, or None where CMake or what the whole library needs is missing."""
    if not cmake_is_new_enough(log):
        log.say("no CMake of 3.25 or newer")
        return None
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    settings = [f"-DGRADSIEVE_{what}=OFF" for what in LEFT_OUT] + [
        "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG",
        f"-DCMAKE_CUDA_ARCHITECTURES={arch}", "-DGRADSIEVE_CUDA=ON",
        "-DGRADSIEVE_CUDA_EMULATOR=OFF", f"-DGRADSIEVE_CCCL={cccl or ''}"]
    if nccl := nccl_header_of_torch(python, log):
        settings.append(f"-DGSV_NCCL_INCLUDE_DIR={nccl}")
    command = ["cmake", "-S", ROOT, "-B", folder, *generator, *settings]
    status, _ = log.run(command, min(60, seconds))
    if status != 0:
        log.say("CMake does not find what the whole library needs")
        return None

    def build(targets):
        jobs = str(os.cpu_count() or 1)
        return log.run(["cmake", "--build", folder, "-j", jobs, "--target", *targets], seconds)[0]

    if build([BENCH]) != 0:
        return None
    # A test has no command before its program is there; but it has the program's name.
    _, known = log.run(["cmake", "--build", folder, "--target", "help"], 60, quiet=True)
    names = {name.split(".")[0] for name in ctests(folder, log)}
    wanted = names | {"gsv"}  # the C interface, for torch
    if found := sorted(wanted & set(re.findall(r"\w+", known))):
        build(found)
    return from_folder(folder, log)


# --- nvcc alone ----------------------------------------------------------------------------------

class Source:
    """A file, what it is compiled with beside the common flags, and a name for that."""

    def __init__(self, path, extra=(), variant=""):
        self.path, self.extra, self.variant = path, list(extra), variant

    def object_name(self):
        return str(self.path.resolve()).strip("/").replace("/", ".") + self.variant + ".o"


def library_sources():
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    targets = SIMD_FLAGS if on_x86 else {"portable": []}
    for folder in ("core", "kernels", "kernels/ref", "kernels/cpu"):
        for path in sorted((ROOT / folder).glob("*.cpp")):
            if path.name.startswith("no_"):  # stands in for CUDA
                continue
            if not path.name.endswith(".simd.cpp"):
                have = [f"-DGRADSIEVE_HAVE_TARGET_{target.upper()}=1" for target in targets]
                yield Source(path, have)
                continue
            for target, flags in targets.items():
                macros = [f"-DGRADSIEVE_TARGET={target}", f"-DGRADSIEVE_TARGET_{target.upper()}=1"]
                yield Source(path, [*macros, *flags, "-fno-math-errno", "-fno-trapping-math"],
                             "." + target)
    for path in sorted((ROOT / "kernels/cuda").glob("*.cu")):
        yield Source(path)


def bench_sources():
    return [Source(path) for path in sorted((ROOT / "bench/cuda").glob("*.c*"))
            if path.suffix in (".cpp", ".cu")]


def test_sources(gtest_folder):
    """The equivalence tests and GoogleTest itself; none without its sources."""
    root = pathlib.Path(gtest_folder or "nowhere")
    gtest = [root / "googletest/src/gtest-all.cc", root / "googlemock/src/gmock-all.cc"]
    if not all(path.is_file() for path in gtest):
        return []
    includes = [f"-I{root / part}{end}" for part in ("googletest", "googlemock")
                for end in ("", "/include")]
    files = sorted((ROOT / "tests/equivalence/cuda").glob("*_test.cpp"))
    files.append(ROOT / "tests/support/cuda_main.cpp")
    return [Source(path, includes) for path in files + gtest]


class Direct:
    """Compiles with as many processes as there are cores. A file of core that lacks a library's
    header is left out: the archive gives the linker only what is asked for."""

    def __init__(self, folder, seconds, log, cccl, arch):
        self.folder, self.seconds, self.log = pathlib.Path(folder).resolve(), seconds, log
        self.nvcc = tool("nvcc")
        self.includes = [f"-I{path}" for path in (cccl, ROOT, ROOT / "include") if path]
        self.defines = ["-DGRADSIEVE_HAVE_CUDA=1", "-DNDEBUG"]
        self.arch = [f"-arch={arch if arch == 'native' else f'sm_{arch}'}"]
        self.runtime = "static"
        if arch == EMULATED:
            self.arch, self.runtime = ["-gencode", "arch=compute_90,code=compute_90"], "shared"
        headers = (path for folder in ("include", "core", "kernels", "bench/cuda", "tests")
                   for path in (ROOT / folder).rglob("*.*h*"))
        self.newest_header = max(path.stat().st_mtime for path in headers)
        (self.folder / "objects").mkdir(parents=True, exist_ok=True)

    def compile(self, source):
        """The object, or None. nvcc gives C++ to the host compiler, with the toolkit's headers."""
        out = self.folder / "objects" / source.object_name()
        newest = max(source.path.stat().st_mtime, self.newest_header)
        if out.is_file() and out.stat().st_mtime > newest:
            return out
        extra = source.extra
        if source.path.suffix == ".cu":
            flags = [*DEVICE_FLAGS, *self.arch]
        else:
            flags = ["-x", "c++", *(f"-Xcompiler={flag}" for flag in HOST_FLAGS)]
            extra = [f if f[:2] in ("-I", "-D") else f"-Xcompiler={f}" for f in extra]
        command = [self.nvcc, *flags, *self.defines, *self.includes, *extra, "-c", source.path]
        status, _ = self.log.run([*command, "-o", out], self.seconds)
        return out if status == 0 else None

    def compile_all(self, sources):
        """The slowest first. Those that could not be compiled are not in the result."""
        order = sorted(sources, key=lambda s: (s.path.suffix != ".cu", -s.path.stat().st_size))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = pool.map(self.compile, order)
            return {source: out for source, out in zip(order, objects) if out is not None}

    def link(self, name, objects, archive):
        out = self.folder / name
        command = [self.nvcc, f"-cudart={self.runtime}", *self.arch, "-o", out, *objects, archive,
                   "-lpthread", "-ldl"]
        return out if self.log.run(command, self.seconds)[0] == 0 else None

    def build(self, gtest_folder):
        parts = [list(library_sources()), bench_sources(), test_sources(gtest_folder)]
        made = self.compile_all([source for part in parts for source in part])
        library, bench, tests = ([made[s] for s in part if s in made] for part in parts)
        programs = Programs(self.folder)
        missing = [source.path.name for part in parts for source in part if source not in made]
        if missing:
            programs.notes.append("not compiled: " + ", ".join(missing))
        archive = self.folder / "libgradsieve.a"
        archive.unlink(missing_ok=True)
        self.log.run(["ar", "rcs", archive, *library], self.seconds)
        programs.bench = self.link(BENCH, bench, archive)
        if tests and (out := self.link("cuda_tests", tests, archive)):
            programs.tests.append(("cuda_tests", [str(out)]))
        return programs


def with_nvcc(folder, seconds, log, gtest_folder, cccl, arch):
    if tool("nvcc") is None:
        log.say("no nvcc")
        return None
    return Direct(folder, seconds, log, cccl, arch).build(gtest_folder)
