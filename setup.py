"""Build the package with the data that lies beside it in the tree; see pyproject.toml too."""

import json
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from sglang_mi300a import shipped  # noqa: E402 - the tree is not on the path of an isolated build


class BuildWithData(build_py):
    """Also put the data folders and the version facts where ``shipped`` looks for them."""

    def run(self) -> None:
        """Build; an editable install reads all of it from the tree."""
        if self.editable_mode:
            super().run()
            return
        package = Path(self.build_lib) / "sglang_mi300a"
        shutil.rmtree(package, ignore_errors=True)  # files of an earlier build must not ship
        super().run()
        for name in shipped.FOLDERS:
            shutil.copytree(ROOT / name, package / "data" / name)
        facts = json.dumps(shipped.facts(), indent=1)
        (package / "supported.json").write_text(facts + "\n", encoding="utf-8")


setup(cmdclass={"build_py": BuildWithData})
