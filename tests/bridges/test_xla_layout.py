"""XLA's structures as the core declares them lie as in the header that the installed jaxlib brings."""

import os
import shlex
import subprocess
from pathlib import Path

import jaxlib
import pytest

CSRC = Path(__file__).parents[2] / "csrc"
INCLUDE = Path(jaxlib.__file__).parent / "include"
# Of each structure the name in XLA's header, and of each member; ours first.
STRUCTURES = {
    ("Extension", "XLA_FFI_Extension_Base"): "bytes=struct_size kind=type next",
    ("Version", "XLA_FFI_Api_Version"): (
        "bytes=struct_size extensions=extension_start major=major_version minor=minor_version"
    ),
    ("Metadata", "XLA_FFI_Metadata"): "bytes=struct_size version=api_version traits",
    ("MetadataExtension", "XLA_FFI_Metadata_Extension"): "extension=extension_base metadata",
    ("ErrorRequest", "XLA_FFI_Error_Create_Args"): "bytes=struct_size extensions=extension_start message code=errc",
    ("DestroyRequest", "XLA_FFI_Error_Destroy_Args"): "bytes=struct_size extensions=extension_start error",
    ("StreamRequest", "XLA_FFI_Stream_Get_Args"): "bytes=struct_size extensions=extension_start context=ctx stream",
    ("Api", "XLA_FFI_Api"): (
        "bytes=struct_size extensions=extension_start version=api_version internal=internal_api "
        "create_error=XLA_FFI_Error_Create message_of_error=XLA_FFI_Error_GetMessage "
        "destroy_error=XLA_FFI_Error_Destroy register_handler=XLA_FFI_Handler_Register get_stream=XLA_FFI_Stream_Get"
    ),
    ("Buffer", "XLA_FFI_Buffer"): (
        "bytes=struct_size extensions=extension_start type=dtype data axes=rank sizes=dims"
    ),
    ("Buffers", "XLA_FFI_Args"): "bytes=struct_size extensions=extension_start count=size kinds=types buffers=args",
    ("Buffers", "XLA_FFI_Rets"): "bytes=struct_size extensions=extension_start count=size kinds=types buffers=rets",
    ("Attributes", "XLA_FFI_Attrs"): (
        "bytes=struct_size extensions=extension_start count=size kinds=types names values=attrs"
    ),
    ("Text", "XLA_FFI_ByteSpan"): "data=ptr size=len",
    ("Scalar", "XLA_FFI_Scalar"): "type=dtype value",
    ("Numbers", "XLA_FFI_Array"): "type=dtype size data",
    ("Frame", "XLA_FFI_CallFrame"): (
        "bytes=struct_size extensions=extension_start api context=ctx stage arguments=args results=rets "
        "attributes=attrs"
    ),
}  # fmt: skip
# Names that newer headers have for the same.
RENAMED = {
    "XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension",
    "XLA_FFI_Error_GetMessage": "XLA_FFI_Error_GetDetails",
}
# These are longer in later versions, and of a handler's own only the beginning is read.
LONGER = {"Api", "Frame", "Metadata"}
NUMBERS = {
    "kMetadata": "XLA_FFI_Extension_Metadata",
    "kIsBuffer": "XLA_FFI_ArgType_BUFFER",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    "kInCommandBuffer": "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE",
    "AttributeKind::kArray": "XLA_FFI_AttrType_ARRAY",
    "AttributeKind::kScalar": "XLA_FFI_AttrType_SCALAR",
    "AttributeKind::kText": "XLA_FFI_AttrType_STRING",
    "Code::kInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "Code::kNotFound": "XLA_FFI_Error_Code_NOT_FOUND",
    "Code::kResourceExhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "Code::kOutOfRange": "XLA_FFI_Error_Code_OUT_OF_RANGE",
    "Code::kInternal": "XLA_FFI_Error_Code_INTERNAL",
    "Number::kBool": "XLA_FFI_DataType_PRED",
    "Number::kInt32": "XLA_FFI_DataType_S32",
    "Number::kInt64": "XLA_FFI_DataType_S64",
    "Number::kUint8": "XLA_FFI_DataType_U8",
    "Number::kFloat32": "XLA_FFI_DataType_F32",
    "Number::kBfloat16": "XLA_FFI_DataType_BF16",
}


def program(structures: dict[tuple[str, str], str]) -> str:
    """A program that compiles only where both agree."""
    lines = [
        "#include <xla/ffi/api/c_api.h>",
        '#include "bindings/xla_interface.h"',
        "namespace xla = cellerate::xla;",
        "static_assert(xla::kMajor == XLA_FFI_API_MAJOR && xla::kMinor <= XLA_FFI_API_MINOR);",
    ]
    for (ours, theirs), members in structures.items():
        less = "<=" if ours in LONGER else "=="
        lines.append(f"static_assert(sizeof(xla::{ours}) {less} sizeof({theirs}));")
        for member in members.split():
            our, _, their = member.partition("=")
            their = their or our
            lines.append(f"static_assert(offsetof(xla::{ours}, {our}) == offsetof({theirs}, {their}));")
            lines.append(f"static_assert(sizeof(xla::{ours}::{our}) {less} sizeof({theirs}::{their}));")
    lines += [f"static_assert(static_cast<int>(xla::{our}) == {their});" for our, their in NUMBERS.items()]
    text = "\n".join(lines) + "\n"
    header = (INCLUDE / "xla/ffi/api/c_api.h").read_text()
    for name, newer in RENAMED.items():
        if newer in header:
            text = text.replace(name, newer)
    return text


def compiles(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Has the compiler look at a program."""
    file = folder / "layout.cpp"
    file.write_text(text)
    includes = ["-I", str(CSRC), "-isystem", str(INCLUDE)]
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    command = [*compiler, "-std=c++20", "-fsyntax-only", *includes, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_structures_lie_as_in_the_header_of_jaxlib(tmp_path):
    done = compiles(program(STRUCTURES), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fault", ["stage=ctx", "kinds=args"])
def test_a_member_in_another_place_is_found(tmp_path, fault):
    ours = ("Frame", "XLA_FFI_CallFrame") if "ctx" in fault else ("Buffers", "XLA_FFI_Args")
    assert "static assertion failed" in compiles(program({ours: fault}), tmp_path).stderr
