"""One small file an experiment; each is a function of a Lab that yields rows."""

from diffmark.evaluation.experiments.averaging import averaging
from diffmark.evaluation.experiments.clean import clean
from diffmark.evaluation.experiments.keys import keys
from diffmark.evaluation.experiments.latency import latency
from diffmark.evaluation.experiments.robustness import robustness
from diffmark.evaluation.experiments.transfer import transfer
from diffmark.evaluation.lab import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "clean": clean,
    "robustness": robustness,
    "keys": keys,
    "transfer": transfer,
    "latency": latency,
    "averaging": averaging,
}
