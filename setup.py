"""The native CPU kernels, an optional part of the build. All else about the package stands in pyproject.toml.

They are one shared library with a plain C interface (backends/cpu/native/abi.h). It knows nothing of Python, so one
build serves every version of it. Without a working C++ compiler the package installs all the same, and
`quantdispatch doctor` says what is lost.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FOLDER = Path("backends/cpu/native")
SOURCES = sorted(path.as_posix() for path in FOLDER.glob("*.cpp"))
HEADERS = sorted(path.as_posix() for pattern in ("*.h", "*.inl", "flags.txt") for path in FOLDER.glob(pattern))


class BuildNative(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        # A name that is no module's: Python must not try to import it.
        return os.path.join(*fullname.split(".")) + (".native.dll" if sys.platform == "win32" else ".native.so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)

    def build_extension(self, ext: Extension) -> None:
        """Compile the files side by side, which distutils does one after the other."""
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                compiled = pool.map(lambda source: compile_one([source], **options), sources)
                return [name for names in compiled for name in names]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one


class Modules(build_py):
    """The root is the package, and this file in it is no module of it."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[0] != "quantdispatch" or module[1] not in ("setup", "noxfile")]


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "quantdispatch.backends.cpu.native._kernels",
            SOURCES,
            depends=HEADERS,
            extra_compile_args=(FOLDER / "flags.txt").read_text().split(),
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "build_py": Modules, "bdist_wheel": Wheel},
)
