"""Kernels: Numba, with a cache of compiled code that is verified before it is read.

Numba unpickles its cache, and what it unpickles it runs. So the functions of this package, and the
kernels that are generated in it, keep their compiled code in the vault (io/vault.py): one file for
each function and types of arguments. Functions of others are cached as Numba does. Modules whose
functions are cached take `numba` from here, and not from Numba itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import pickle
import platform
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numba
from llvmlite import ir as llvm
from llvmlite.binding import Linkage, create_new_function_pass_manager
from numba import _dynfunc
from numba.core import caching, cgutils, dispatcher, serialize, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import (
    AnnotateTypes,
    DumpParforDiagnostics,
    InlineOverloads,
    NativeLowering,
    NopythonRewrites,
)
from numba.core.untyped_passes import (
    FindLiterallyCalls,
    InlineClosureLikes,
    InlineInlinables,
    LiteralPropagationSubPipelinePass,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    WithLifting,
)
from numba.extending import intrinsic
from numba.extending import overload as overload_of_numba
from numba.extending import overload_method as overload_method_of_numba

from headgate.errors import InvariantError
from headgate.io.vault import Vault
from headgate.state import (
    apart,
    quickening,  # noqa: F401  it takes its place in Numba
)
from headgate.state.sources import file_digest, stamp_of

__all__ = ["GENERATED", "cache_folder", "mix", "numba", "prefetch", "vault"]

log = logging.getLogger("headgate")
GENERATED = "headgate_generated_"  # modules of generated kernels, followed by their fingerprint
_PACKAGE = "headgate."
_BYTE, _I32, _I64 = llvm.IntType(8).as_pointer(), llvm.IntType(32), llvm.IntType(64)
_READ, _WRITE, _SECOND_LEVEL, _DATA = _I32(0), _I32(1), _I32(2), _I32(1)


def cache_folder() -> Path:
    """Where kernels are kept: HEADGATE_CACHE, or headgate/ in the user's cache folder."""
    if chosen := os.environ.get("HEADGATE_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "headgate"


def vault() -> Vault:
    """The vault of compiled code."""
    return Vault(cache_folder())


class _Implementation(caching.CompileResultCacheImpl):
    """What of a compiled function is kept; Numba's own, without its search for a folder."""

    def __init__(self, py_func: FunctionType) -> None:
        self._lineno = py_func.__code__.co_firstlineno
        self._locator = SimpleNamespace(_py_file=py_func.__code__.co_filename)


class VerifiedCache(caching.FunctionCache):
    """The compiled code of one function."""

    def __init__(self, py_func: FunctionType) -> None:
        self._name = repr(py_func)
        self._py_func = py_func
        self._impl = _Implementation(py_func)
        self._cache_path = str(cache_folder())
        file_digest(py_func.__code__.co_filename)  # as it is imported, not as it is changed later
        self.enable()

    def flush(self) -> None:
        """Nothing is to be forgotten: what does not fit is not found."""

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        key = self._key(sig, target_context.codegen())
        name = self._file(key)
        if not self._enabled or name is None:
            return None
        payload = vault().read(name)
        if payload is None:
            return None
        try:
            found, reduced, called = pickle.loads(payload)
            if found != key or not apart.are_there(called):
                return None
            return apart.marked(self._impl.rebuild(target_context, reduced), self._py_func)
        except Exception:  # written by something that is not here any more: compile it again
            log.debug("compiled code in %s cannot be read", name, exc_info=True)
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        key = self._key(sig, data.codegen)
        name = self._file(key)
        if not apart.may_be_kept(data):
            return
        if self._enabled and name is not None and self._impl.check_cachable(data):
            payload = key, self._impl.reduce(data), apart.called_by(data.library)
            vault().write(name, serialize.dumps(payload))

    def _key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        versions = numba.__version__, sys.version, platform.machine()
        return (*self._index_key(sig, codegen), versions)

    def _file(self, key: tuple[Any, ...]) -> str | None:
        """The name of the file, None for what cannot be recognised again."""
        folder = _folder(self._py_func)
        if folder is None:
            return None
        code = self._py_func.__code__
        word = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        return f"{folder}/{self._py_func.__name__}-{code.co_firstlineno}-{word}.code"


def _folder(function: FunctionType) -> str | None:
    """The folder of a function's compiled code, named by all the sources that went into it."""
    if function.__module__.startswith(GENERATED):
        return f"kernels/{function.__module__.removeprefix(GENERATED)}"
    stamp = stamp_of(function)
    return None if stamp is None else f"package/{stamp}"


def _is_ours(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return bool(module.startswith((_PACKAGE, GENERATED)))


def _make_cache(function: Any) -> Any:
    """What Numba asks for a cache: ours for what is ours, its own for all else."""
    return VerifiedCache(function) if _is_ours(function) else caching.FunctionCache(function)


dispatcher.FunctionCache = _make_cache


# --- numbers that are written in a call ----------------------------------------------------------

_USERS = "headgate.compiling."  # what a user wrote, compiled: there a number may decide on a type
_call_template = dispatcher.Dispatcher.get_call_template


def _get_call_template(self: Any, args: Any, kws: Any) -> Any:
    """As Numba has it, but 3 is an integer like any other to a kernel that is called with it.

    Numba takes it for a type of its own, and compiles the function once more for each number.
    """
    if _is_ours(self.py_func) and not self.py_func.__module__.startswith(_USERS):
        args = tuple(types.unliteral(one) for one in args)
    return _call_template(self, args, kws)


dispatcher.Dispatcher.get_call_template = _get_call_template


# --- memory asked for before it is needed ---------------------------------------------------------


def _asking(access: Any) -> Any:
    """An intrinsic that asks for the cache line of an address, to read it or to write it."""

    @intrinsic
    def ask(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            form = llvm.FunctionType(llvm.VoidType(), [_BYTE, _I32, _I32, _I32])
            function = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
            # That cache waits for more lines at once than the first: over millions of rows a
            # transfer takes about a tenth less, over few some hundredths more.
            hints = access, _SECOND_LEVEL, _DATA
            builder.call(function, [builder.inttoptr(args[0], _BYTE), *hints])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return ask


# So that waits for memory overlap. Only a hint: any address may be given, nothing depends on it.
prefetch = _asking(_READ)
prefetch_to_write = _asking(_WRITE)  # takes the line from other cores at once


# --- hashes of keys -------------------------------------------------------------------------------


@intrinsic
def mix(typing_context: Any, value: Any, word: Any) -> Any:
    """One more word of a key in its hash."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # The low bits of a product depend on the low bits of its factors alone, and they choose the
        # place in the index: fold the high bits, which depend on all, down to them.
        mixed = builder.mul(builder.xor(*args), _I64(0x9E3779B97F4A7C15))
        return builder.xor(mixed, builder.lshr(mixed, _I64(32)))

    return types.int64(types.int64, types.int64), generate


# --- functions that only compiled functions call --------------------------------------------------
# Numba optimises every function that it compiles, makes machine code of it and a way in for Python,
# and does the same again with a copy of it in each function that calls it. A kernel is made of a
# hundred small functions, nine deep. So these are only lowered, and kept for the linker: a kernel
# takes in all that it calls, and is optimised and made machine code once, as a whole.
#
# Invariant: such a function cannot be called from Python, which is told by an error.


_COMPILED = "_ZN"  # how the names of compiled functions begin
_ENVIRONMENT = "_ZN08NumbaEnv"  # how the names begin under which code finds its Python objects
# What Python would call: it says that this is an error, where there would be no code at all.
_NO_WAY_IN = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value


class Lowered(JITCodeLibrary):
    """The code of one function, as the linker takes it."""

    symbol = ""  # the name by which it is called

    def _optimize_functions(self, module: Any) -> None:
        """Only what makes it shorter: the kernel that takes it in is optimised as a whole, to the
        same code, whatever is done here."""
        module.data_layout = self._codegen._data_layout
        builder, passes = self._codegen._pass_builder(opt=1), create_new_function_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def finalize(self) -> None:
        """What it calls is linked into the kernel beside it, and all of it optimised there."""
        self._finalize_dynamic_globals()
        self._linking_libraries: list[Any] = list(dict.fromkeys(self._linking_libraries))
        self._finalized = True


_finalize = JITCodeLibrary.finalize


def _finalize_callers_first(self: Any) -> None:
    """As Numba has it, but what is linked comes behind all that call it.

    The linker leaves out a function that nothing calls so far, and is handed each one once. Numba
    hands them over in the order of the calls, where one may stand behind a caller that was left
    out itself, its call being on a way that is never taken, and before the one that does call it.
    """
    given = apart.taken_out(self)
    ours = [one for one in given if isinstance(one, Lowered)]
    if ours:
        # Who calls another has all that it has, and the other beside.
        ours.sort(key=lambda one: -len(one._linking_libraries))
        self._linking_libraries = [*ours, *(one for one in given if not isinstance(one, Lowered))]
    _finalize(self)


JITCodeLibrary.finalize = _finalize_callers_first
_optimize_final_module = JITCodeLibrary._optimize_final_module


def _optimize_as_one(self: Any) -> None:
    """As Numba has it, but functions that were linked into a kernel are the kernel's own.

    Numba lets them be found from outside, and then LLVM keeps every one that is not small as a
    function to be called, which loads all it needs from its frame once more for each event.
    """
    if any(isinstance(one, Lowered) for one in self._linking_libraries):
        for function in self._final_module.functions:
            if function.linkage is Linkage.linkonce_odr and function.name.startswith(_COMPILED):
                function.linkage = "internal"
    _optimize_final_module(self)


JITCodeLibrary._optimize_final_module = _optimize_as_one


def _verify_all_linked(self: Any) -> None:
    """A call of a function that was not linked is an error now; later it ends the process."""
    elsewhere = {one.symbol for one in apart.called_by(self)}
    for function in self._final_module.functions:
        name = function.name
        if function.is_declaration and name.startswith(_COMPILED) and name not in elsewhere:
            raise InvariantError(f"{self.name}: {function.name} was not linked")


JITCodeLibrary._verify_declare_only_symbols = _verify_all_linked


def way_in(context: Any, described: Any, environment: Any, library: Lowered) -> Any:
    """What stands for a function that is only linked, so that code which is lowered finds it."""
    module, name = described.lookup_module(), described.qualname
    entry = _dynfunc.make_function(module, name, "", _NO_WAY_IN, environment, (library,))
    libraries = [library, *dict.fromkeys(library._linking_libraries)]
    context.insert_user_function(entry, described, libraries)
    return entry


@register_pass(mutates_CFG=True, analysis_only=False)
class LinkedLowering(NativeLowering):
    """Lowers a function for the linker alone."""

    _name = "headgate_linked_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = Lowered(state.targetctx.codegen(), state.func_id.func_qualname)
        flags = state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().run_pass(state)
        found = state["cr"]
        state.library.symbol = found.fndesc.mangled_name
        entry = way_in(state.targetctx, found.fndesc, found.env, state.library)
        state["cr"] = found._replace(cfunc=entry)
        _forget(state)
        return True


def _forget(state: Any) -> None:
    """What was known of a function while it was compiled, which Numba keeps to show it to people:
    a hundred functions of a program, and all programs of a process."""
    state.type_annotation = ""
    described = state["cr"].fndesc
    described.typemap = described.calltypes = None


@register_pass(mutates_CFG=False, analysis_only=True)
class _Environments(AnalysisPass):
    """Gives the functions that were linked into a kernel the Python objects that they refer to."""

    _name = "headgate_environments"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        for variable in state.library._final_module.global_variables:
            if variable.name.startswith(_ENVIRONMENT):
                environment = lookup_environment(variable.name)
                if environment is not None:
                    state.library.codegen.set_env(variable.name, environment)
        _forget(state)
        return False


def lowered_only(manager: Any) -> Any:
    """The same passes, but for the linker."""
    manager.passes = [
        (LinkedLowering if one is NativeLowering else one, words) for one, words in manager.passes
    ]
    return manager


# Passes that only change what kernels do not have: closures, `with`, expressions of arrays, loops
# over mixed tuples, functions to be put in the place of their calls, reports. Each goes through the
# whole function to find nothing.
_WITHOUT = (
    WithLifting,
    InlineClosureLikes,
    MakeFunctionToJitFunction,
    InlineInlinables,
    FindLiterallyCalls,
    LiteralUnroll,
    LiteralPropagationSubPipelinePass,
    InlineOverloads,
    NopythonRewrites,
    AnnotateTypes,
    DumpParforDiagnostics,
)


def _words_only(manager: Any) -> Any:
    """The passes that functions of words need: those of kernels, which take nothing else."""
    manager.passes = [(one, words) for one, words in manager.passes if one not in _WITHOUT]
    return manager


class _LinkedCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = lowered_only(DefaultPassBuilder.define_nopython_pipeline(self.state))
        manager.finalize()
        return [manager]


class _PartCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = _words_only(DefaultPassBuilder.define_nopython_pipeline(self.state))
        lowered_only(manager).finalize()
        return [manager]


class _KernelCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = _words_only(DefaultPassBuilder.define_nopython_pipeline(self.state))
        manager.add_pass_after(_Environments, NativeLowering)
        manager.finalize()
        return [manager]


def linked(function: Any) -> Any:
    """Compiled as a part of whatever compiled function calls it; for functions of words."""
    return numba.njit(nogil=True, pipeline_class=_PartCompiler)(function)


def overload(function: Any, prefer_literal: bool = False) -> Any:
    """As Numba's decorator: what a function is for our types, and that is linked, too."""
    options = {"pipeline_class": _LinkedCompiler}
    return overload_of_numba(
        function, jit_options=options, strict=False, prefer_literal=prefer_literal
    )


def overload_method(kind: Any, name: str) -> Any:
    """The same for a method of one of our types."""
    options = {"pipeline_class": _LinkedCompiler}
    return overload_method_of_numba(kind, name, jit_options=options, strict=False)


def linking(context: Any, builder: Any, function: Any, words: Any) -> Any:
    """Call a linked function of words out of code that is being lowered."""
    called = types.Dispatcher(function)
    kinds = (types.int64,) * len(words)
    found = context.get_function(called, called.get_call_type(context.typing_context, kinds, {}))
    context.add_linking_libs(getattr(found, "libs", ()))
    return found(builder, words)


class _ApartCompiler(_KernelCompiler):
    def _compile_bytecode(self) -> Any:
        function = self.state.func_id.func
        versions = *self._versions(), _folder(function)
        apart.give_number(self.state, versions)
        return apart.marked(super()._compile_bytecode(), function)

    def _versions(self) -> tuple[Any, ...]:
        codegen = self.state.targetctx.codegen()
        return numba.__version__, sys.version, platform.machine(), codegen.magic_tuple()


def compiled_apart(function: Any) -> Any:
    """Compiled by itself, once for all kernels, which call it; for long functions of words."""
    apart.declare(function)
    options = {"nogil": True, "cache": _is_ours(function), "no_cfunc_wrapper": True}
    return numba.njit(pipeline_class=_ApartCompiler, **options)(function)


def kernel_of(function: Any, is_kept: bool) -> Any:
    """Compiled with all that it calls, and called from Python; kept on disk or not."""
    options = {"nogil": True, "cache": is_kept, "no_cfunc_wrapper": True}
    return numba.njit(pipeline_class=_KernelCompiler, **options)(function)
