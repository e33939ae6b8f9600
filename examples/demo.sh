#!/bin/sh
# Trains a model to write Python, on the sources of Python's own standard library, for about two minutes; then makes it
# faster and smaller, for about three.
set -eu
library=$(python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
export CELLERATE_CACHE=demo/cache TF_CPP_MIN_LOG_LEVEL=3
mkdir -p demo
rm -rf demo/python.keras demo/python.run demo/optimized

echo "Training on $library"
cellerate train text "$library" -o demo/python.keras --backend jax \
    --include '*.py' --exclude test --exclude tests --exclude idlelib --exclude site-packages --errors replace \
    --embedding 64 --units 256 --length 100 --batch-size 64 --learning-rate 0.004 --clipnorm 1.0 \
    --validation-fraction 0.01 --epochs 1 --max-seconds 110 --sample 'def read'

echo
echo "Which kernel runs each layer, and why:"
cellerate explain demo/python.keras --backend jax

echo
echo "It goes on from any text:"
cellerate generate demo/python.keras 'class Parser' --backend jax --max-tokens 300 --temperature 0.6 --seed 1

echo
echo "Faster and smaller, within 2 % of its quality:"
cellerate optimize demo/python.keras --data "$library" -o demo/optimized --backend jax \
    --max-quality-loss 0.02 --time-budget 170 --batch-size 64 --skip length

cat <<'END'

Open demo/optimized/report.html in a browser. What to do next, from this folder:
  . .venv/bin/activate
  cellerate generate demo/python.keras 'import os' --temperature 0.8
  cellerate generate demo/optimized/optimized.cell 'import os' --temperature 0.8
  cellerate train text YOUR.txt -o yours.keras         # train on a text of your own
  cellerate train series YOUR.csv --target COLUMN -o forecast.keras
  cellerate --help
END
