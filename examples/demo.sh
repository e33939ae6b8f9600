#!/bin/sh
# Trains a model to write Python, on the sources of Python's own standard library, for about two minutes; makes it
# faster and smaller, for about two and a half; and forecasts a series that it makes up, with a chart, in half a minute.
set -eu
library=$(python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
export CELLERATE_CACHE=demo/cache TF_CPP_MIN_LOG_LEVEL=3
mkdir -p demo
rm -rf demo/python.keras demo/python.run demo/optimized demo/demand.keras demo/demand.run

echo "Training on $library"
cellerate train text "$library" -o demo/python.keras --backend jax \
    --include '*.py' --exclude test --exclude tests --exclude idlelib --exclude site-packages --errors replace \
    --embedding 64 --units 256 --length 100 --batch-size 64 --learning-rate 0.004 --clipnorm 1.0 \
    --validation-fraction 0.01 --epochs 1 --max-seconds 100 --sample 'def read'

echo
echo "Which kernel runs each layer, and why:"
cellerate explain demo/python.keras --backend jax

echo
echo "It goes on from any text:"
cellerate generate demo/python.keras 'class Parser' --backend jax --max-tokens 300 --temperature 0.6 --seed 1

echo
echo "Faster and smaller, within 2 % of its quality:"
cellerate optimize demo/python.keras --data "$library" -o demo/optimized --backend jax \
    --max-quality-loss 0.02 --time-budget 130 --batch-size 64 --skip length

echo
echo "A forecaster, on a year of hourly demand with a day, a week and weather of its own:"
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
    --units 64 --batch-size 64 --learning-rate 0.004 --clipnorm 1.0 --epochs 20 --max-seconds 20
cellerate forecast demo/demand.keras demo/demand.csv --backend jax -o demo/forecast.csv --plot demo/forecast.png >/dev/null

cat <<'END'

Open demo/forecast.png: the next two days of that demand, with the intervals that should hold 80 and 95 % of what comes.
Open demo/optimized/report.html in a browser. What to do next, from this folder:
  . .venv/bin/activate
  cellerate generate demo/python.keras 'import os' --temperature 0.8
  cellerate generate demo/optimized/optimized.cell 'import os' --temperature 0.8
  cellerate train text YOUR.txt -o yours.keras         # train on a text of your own
  cellerate train series YOUR.csv --target COLUMN -o forecast.keras
  cellerate --help
END
