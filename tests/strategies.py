"""For tests that still import it by this name: see `trials`."""

import sys

import trials.networks

sys.modules[__name__] = trials.networks
