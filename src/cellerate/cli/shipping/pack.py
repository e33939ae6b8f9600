"""`cellerate pack`: a trained model as one small file that runs without Keras."""

from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, Vocabulary, operand, option
from cellerate.cli.output import notify, print_json, print_result
from cellerate.format import size


def pack(
    model: Annotated[Path, operand("A .keras file, of Cellerate or of anyone.")],
    output: Annotated[Path, option("The .cell file to write.", "--output", "-o")],
    precision: Annotated[
        str,
        typer.Option("--precision", "--dtype", help="How weights are kept: float32, bfloat16, int8 or int4."),
    ] = "float32",
    vocabulary: Vocabulary = None,
    card: Annotated[Path | None, option("Also write a card of the packed model, *.md.", "--card")] = None,
    sign_key: Annotated[
        Path | None,
        option(
            "Sign the file with this private key (PEM, Ed25519): the signature is written beside it, *.cell.sig.",
            "--sign-key",
        ),
    ] = None,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Pack a model into one small file that runs without Keras.

    Examples:
        cellerate pack book.keras -o book.cell --precision int8

        cellerate pack mine.keras -o mine.cell --vocabulary book.txt
    """
    # Checked first, for a framework takes seconds to start.
    from cellerate.runtime.cell import check_packed

    check_packed(output, precision)
    if card is not None:
        from cellerate.tasks.describe import check_card, file_info, write_card

        check_card(card)
    start_backend_for(model, backend, packed=False)
    replaced = output.exists()
    from cellerate.kernels.native import multiplies_bfloat16
    from cellerate.tasks.packing import pack as pack_model

    pack_model(model, output, precision=precision, vocabulary=vocabulary, sign_key=sign_key)
    if precision == "bfloat16" and not multiplies_bfloat16():
        notify(
            "this processor multiplies bfloat16 as float32: the file is half as large, and only where weights come "
            "from main memory is it faster; --precision int8 is faster everywhere."
        )
    if card is not None:
        write_card(card, file_info(output))
    sizes = {"model_bytes": model.stat().st_size, "output_bytes": output.stat().st_size}
    if json:
        print_json({"output": str(output), "precision": precision, **sizes})
    else:
        again = ", replaced" * replaced
        print_result(
            f"{output}: {size(sizes['output_bytes'])}{again} ({model}: {size(sizes['model_bytes'])})"
        )
