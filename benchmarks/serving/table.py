"""The table of the serving case."""

from typing import Any

from cellerate.format import short


def served(result: dict[str, Any]) -> list[list[str]]:
    """A row for each measurement."""
    sessions, texts, keras, overload = (result[name] for name in ("sessions", "texts", "keras", "overload"))
    many = result["many"]
    best = max(keras["characters_per_s"], key=keras["characters_per_s"].get)
    slower = texts["characters_per_s"] / keras["characters_per_s"][best]
    rows = [["The server, its client on the same cores", "", ""]]
    rows.append(
        [
            f"{sessions['streams']:,} sessions push a row a second, beside {sessions['idle']:,} idle ones",
            f"{_ms(sessions['p50_s'])} (median), {_ms(sessions['p99_s'])} (99 %)",
            f"{sessions['pushes']:,} pushes, none failed",
        ]
    )
    rows.append(
        [
            f"{texts['streams']} streams of text, int8",
            f"{texts['characters_per_s'] / 1e3:.0f} k characters/s",
            f"{texts['characters_per_event']:.0f} characters an event; first ones after "
            f"{_ms(texts['first']['p50_s'])} (median), {_ms(texts['first']['p99_s'])} (99 %)",
        ]
    )
    rows.append(
        [
            f"the same through a server around Keras's `predict_on_batch`, on {best}",
            f"{keras['characters_per_s'][best] / 1e3:.2f} k characters/s",
            f"{slower:.0f} times slower",
        ]
    )
    rows.append(
        [
            f"{many['streams']:,} streams from the same moment",
            f"{many['texts']:,} answered, none refused",
            f"first characters after {_ms(many['first']['p50_s'])} (median), {_ms(many['first']['p99_s'])} (99 %)",
        ]
    )
    rows.append(
        [
            f"texts of {overload['characters']} characters asked for at random moments, twice as often as can be "
            "drawn",
            f"{overload['texts']:,} answered, {overload['refused']:,} refused",
            f"refused after {_ms(overload['refusal']['p50_s'])} (median), {_ms(overload['refusal']['p99_s'])} "
            f"(99 %); as before {overload['normal_after_s']:.1f} s after the last",
        ]
    )
    return rows


def _ms(seconds: float) -> str:
    return f"{short(1e3 * seconds)} ms"
