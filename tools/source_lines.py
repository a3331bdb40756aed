"""Compile a kernel of gfx950 again, with a line table, into a file that nothing launches: KERNEL FILE.

The code objects of the package have no line tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from archs import ARCHS
from instances import instances_for
from toolchain import SOURCE, BuildError, choose, reason, run
from units import compiled_for, split

ARCH = "gfx950"


def compile_with_lines(name: str, target: Path) -> None:
    """The unit of a kernel, with its line table."""
    tools = choose()
    every = split(instances_for(tools, ARCHS[ARCH]), ARCH)
    found = [(unit, x) for unit in every for x in unit.instances if x.kernel["name"] == name]
    if not found:
        raise BuildError(f"no kernel of {ARCH} is called {name}")
    ((unit, instance),) = found  # all of the unit: what is inlined depends on it
    compiled = compiled_for(instance).kernel["name"]
    alias = [f"--defsym={name}={compiled}"] if compiled != name else []
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "unit.def").write_text(unit.source)
        assembly, code = scratch / "kernel.s", scratch / "kernel.o"
        tools.compile(
            SOURCE / "kernels.hip", ARCH, assembly, *unit.flags, "-gline-tables-only", f"-I{scratch}"
        )
        tools.assemble(assembly, ARCH, code)
        run([*tools.lld, "-shared", *alias, str(code), "-o", str(target)])


if __name__ == "__main__":
    try:
        compile_with_lines(sys.argv[1], Path(sys.argv[2]))
    except BuildError as error:
        sys.exit(reason(error))
