"""Compile the driver into a plain shared library next to acme_c/__init__.py, without Python's C API."""

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent


def header_folder() -> str:
    """Return the folder of nnadapter_driver.h: from the installed nnadapter, otherwise from this repository."""
    if find_spec("nnadapter") is None:
        return str(HERE / ".." / ".." / ".." / "nnadapter" / "include")
    import nnadapter

    return nnadapter.get_include()


class PlainLibrary(build_ext):
    """Build step without the name suffix of a Python version: the library is not a Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the file's path in the package."""
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return the only symbol of a driver."""
        return ["nnadapter_driver"]


class AnyPython(bdist_wheel):
    """Wheel for every Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tags."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": PlainLibrary, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            "acme_c.nnadapter_acme_c",
            sources=sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.c")),
            depends=["csrc/acme.h", "csrc/blob.h"],
            include_dirs=[header_folder()],
            define_macros=[("_POSIX_C_SOURCE", "200809L")],
            extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread", "-lm"],
        )
    ],
)
