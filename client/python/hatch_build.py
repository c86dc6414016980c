"""Generates the messages when a wheel is built."""

import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = Path("sluicegate/client/v1/rls.proto")
PACKAGE = "sluicegate/_generated"


class GenerateMessages(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the messages of `rls.proto` to the wheel, as the module `sluicegate._generated.rls_pb2`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generates the messages, and adds them."""
        if self.target_name != "wheel":
            return
        # A source distribution has the file beside this one, the repository at its top.
        roots = [Path(self.root) / "proto", Path(self.root).parents[1] / "proto"]
        root = next(root for root in roots if (root / PROTO).is_file())
        self.folder = tempfile.mkdtemp()
        arguments = [f"-I{root}", f"-I{files('grpc_tools') / '_proto'}"]
        outputs = [f"--python_out={self.folder}", f"--pyi_out={self.folder}"]
        if protoc.main(["protoc", *arguments, *outputs, str(PROTO)]) != 0:
            raise RuntimeError(f"protoc rejects {root / PROTO}")
        generated = Path(self.folder) / PROTO.parent
        kind = "force_include_editable" if version == "editable" else "force_include"
        for name in ["rls_pb2.py", "rls_pb2.pyi"]:
            build_data[kind][str(generated / name)] = f"{PACKAGE}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the folder that the wheel was built from."""
        if self.target_name == "wheel":
            shutil.rmtree(self.folder)
