import pytest

from cellerate.errors import ConfigError
from cellerate.tasks.presets import preset_options, preset_sentence
from cellerate.tasks.settings import TextArchitecture
from cellerate.training.settings import TrainingSettings


@pytest.mark.parametrize("preset", ["small", "medium", "large"])
def test_preset_consists_of_settings_that_records_take(preset):
    chosen = preset_options(preset, ())
    own = {name: chosen.pop(name) for name in TextArchitecture.__dataclass_fields__ if name in chosen}
    TextArchitecture(**own)
    TrainingSettings(**chosen)
    assert own["units"] >= 128


def test_preset_leaves_what_is_given_and_says_what_it_adds():
    chosen = preset_options("small", ["units", "epochs"])
    assert "units" not in chosen
    assert (
        preset_sentence("small", chosen)
        == "preset small: embedding=64 layers=1 learning_rate=0.004 clipnorm=1.0"
    )


def test_preset_that_is_unknown_or_meets_a_model_is_refused():
    with pytest.raises(ConfigError, match="preset must be one of small, medium, large, not 'tiny'"):
        preset_options("tiny", ())
    with pytest.raises(ConfigError, match="preset and model cannot be used together"):
        preset_options("small", (), model="m.keras")
