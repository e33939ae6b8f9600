"""These tests need sktime, Darts and StatsForecast, which have an environment of their own: `make test-adapters`."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("darts", "sktime", "statsforecast"))) else ["test_*.py"]
