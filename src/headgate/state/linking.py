"""Linking: functions that only compiled functions call are part of those, and no code beside.

Numba optimises every function that it compiles, makes machine code of it and a way in for Python,
and does the same again with a copy of it in each function that calls it. A kernel is made of a
hundred small functions, nine deep. So these are only lowered, and kept for the linker: a kernel
takes in all that it calls, and is optimised and made machine code once, as a whole.

Invariant: such a function cannot be called from Python, which is told by an error.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import NativeLowering
from numba.extending import overload as overload_of_numba

from headgate.state.compiled import numba

_ENVIRONMENT = "_ZN08NumbaEnv"  # how the names begin under which code finds its Python objects
# What Python would call: it says that this is an error, where there would be no code at all.
_NO_WAY_IN = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value


class _Lowered(JITCodeLibrary):
    """The code of one function, as the linker takes it."""

    def finalize(self) -> None:
        """What it calls is linked into the kernel beside it, and all of it optimised there."""
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class LinkedLowering(NativeLowering):
    """Lowers a function for the linker alone."""

    _name = "headgate_linked_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _Lowered(state.targetctx.codegen(), state.func_id.func_qualname)
        flags = state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().run_pass(state)
        found = state["cr"]
        module, name = found.fndesc.lookup_module(), state.func_id.func_name
        kept = (state.library,)
        entry = _dynfunc.make_function(module, name, "", _NO_WAY_IN, found.env, kept)
        libraries = [state.library, *state.library._linking_libraries]
        state.targetctx.insert_user_function(entry, found.fndesc, libraries)
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


class _LinkedCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = lowered_only(DefaultPassBuilder.define_nopython_pipeline(self.state))
        manager.finalize()
        return [manager]


class _KernelCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.add_pass_after(_Environments, NativeLowering)
        manager.finalize()
        return [manager]


def linked(function: Any) -> Any:
    """Compiled as a part of whatever compiled function calls it."""
    return numba.njit(nogil=True, pipeline_class=_LinkedCompiler)(function)


def overload(function: Any, prefer_literal: bool = False) -> Any:
    """As Numba's decorator: what a function is for our types, and that is linked, too."""
    options = {"pipeline_class": _LinkedCompiler}
    return overload_of_numba(
        function, jit_options=options, strict=False, prefer_literal=prefer_literal
    )


def kernel_of(function: Any, is_kept: bool) -> Any:
    """Compiled with all that it calls, and called from Python; kept on disk or not."""
    options = {"nogil": True, "cache": is_kept, "no_cfunc_wrapper": True}
    return numba.njit(pipeline_class=_KernelCompiler, **options)(function)
