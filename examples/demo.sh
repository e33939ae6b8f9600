#!/bin/sh
# Trains a model to write Python on the sources of Python's own standard library; forecasts a series that it makes up,
# with a chart; and measures the first model in Keras, on Cellerate and in int8. Its last table says what that gains.
#
# It takes about three minutes on two idle cores. How many seconds the parts may take can be set:
#   DEMO_TRAIN_SECONDS      training the model (55)
#   DEMO_FORECAST_SECONDS   training the forecaster (10)
#   DEMO_OPTIMIZE_SECONDS   measuring the model, and making it faster and smaller (75)
set -eu

trap 'exit 130' INT
trap 'exit 143' TERM
trap '[ $? -eq 0 ] || printf "\nThe demo has stopped before its end. To start it again: make demo\n" >&2' EXIT

library=$(python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
export CELLERATE_CACHE=demo/cache TF_CPP_MIN_LOG_LEVEL=3
mkdir -p demo
rm -rf demo/python.keras demo/python.run demo/demand.csv demo/demand.keras demo/demand.run demo/forecast.csv \
    demo/forecast.png demo/optimized

echo "1. A model that writes Python, trained on $library"
cellerate train text "$library" -o demo/python.keras --backend jax \
    --include '*.py' --exclude test --exclude tests --exclude idlelib --exclude site-packages --errors replace \
    --embedding 64 --units 256 --length 100 --batch-size 64 --learning-rate 0.004 --clipnorm 1.0 \
    --validation-fraction 0.01 --epochs 1 --max-seconds "${DEMO_TRAIN_SECONDS:-55}"

echo
echo "2. It goes on from any text:"
cellerate generate demo/python.keras 'class Parser' --backend jax --max-tokens 300 --temperature 0.6 --seed 1

echo
echo "3. A forecaster, on a year of hourly demand with a day, a week and weather of its own:"
python - >demo/demand.csv <<'END'
import datetime
import math
import random

draw = random.Random(1)
first = datetime.datetime(2024, 1, 1)
weather = 0.0
print("time,demand")
for hour in range(366 * 24):
    time = first + datetime.timedelta(hours=hour)
    weather = 0.97 * weather + draw.gauss(0, 1.2)
    day = math.sin((time.hour - 8) * math.pi / 12) + 0.5 * math.sin((time.hour - 5) * math.pi / 6)
    busy = 0.6 if time.weekday() > 4 else 1
    print(f"{time},{100 + 30 * busy * day + 15 * busy + weather + draw.gauss(0, 2):.1f}")
END
cellerate train series demo/demand.csv --target demand --window 168 --horizon 48 -o demo/demand.keras --backend jax \
    --quantile 0.025 --quantile 0.1 --quantile 0.5 --quantile 0.9 --quantile 0.975 \
    --units 64 --batch-size 64 --learning-rate 0.004 --clipnorm 1.0 --epochs 20 \
    --max-seconds "${DEMO_FORECAST_SECONDS:-10}"
cellerate forecast demo/demand.keras demo/demand.csv --backend jax -o demo/forecast.csv --plot demo/forecast.png >/dev/null

echo
echo "4. The model that writes Python: measured in Keras, made faster and smaller within 2 % of its quality:"
cellerate optimize demo/python.keras --data "$library" -o demo/optimized --backend jax \
    --max-quality-loss 0.02 --batch-size 64 --time-budget "${DEMO_OPTIMIZE_SECONDS:-75}"

echo
echo "To open in a browser:"
echo "  demo/optimized/report.html   # how each of these figures was measured"
echo "  demo/forecast.png            # the next two days of that demand, with intervals that should hold 80 and 95 %"
echo "What to do next, from this folder:"
[ ! -e .venv/bin/activate ] || echo "  . .venv/bin/activate"
echo "  cellerate generate demo/python.keras 'import os' --temperature 0.8"
# There is no such file if the model cannot be made better within the loss allowed.
[ ! -e demo/optimized/optimized.cell ] ||
    echo "  cellerate generate demo/optimized/optimized.cell 'import os' --temperature 0.8   # without Keras"
cat <<'END'
  cellerate explain demo/python.keras                  # which kernel runs each layer, and why
  cellerate train text YOUR.txt -o yours.keras         # train on a text of your own
  cellerate train series YOUR.csv --target COLUMN -o forecast.keras
  cellerate --help
END
