"""One small file an experiment; each is a function of a Harness that yields rows.

The first line of its docstring heads its part of the report.
"""

from diffmark.evaluation.experiments.ablations import ablations
from diffmark.evaluation.experiments.averaging import averaging
from diffmark.evaluation.experiments.clean import clean
from diffmark.evaluation.experiments.collusion import collusion
from diffmark.evaluation.experiments.false_positives import false_positives
from diffmark.evaluation.experiments.forgery import forgery
from diffmark.evaluation.experiments.identification import identification
from diffmark.evaluation.experiments.keys import keys
from diffmark.evaluation.experiments.latency import latency
from diffmark.evaluation.experiments.robustness import robustness
from diffmark.evaluation.experiments.signal import signal
from diffmark.evaluation.experiments.strength import strength
from diffmark.evaluation.experiments.transfer import transfer
from diffmark.evaluation.harness import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "clean": clean,
    "false_positives": false_positives,
    "robustness": robustness,
    "strength": strength,
    "keys": keys,
    "transfer": transfer,
    "latency": latency,
    "identification": identification,
    "averaging": averaging,
    "collusion": collusion,
    "forgery": forgery,
    "signal": signal,
    "ablations": ablations,
}
