"""Inputs for a model from files of the user's: images in a folder or a zip, or arrays.

    album.py      where image files lie, read one at a time, and what their folders are called
    pictures.py   one file of any size or shape → a tensor of the size that the model takes
    arrays.py     inputs as they are, from .npy and .safetensors
    classes.py    what the names of folders say
    samples.py    what these have in common; drawing some of them, and their batches
    finding.py    the source that a user names

Files are not trusted: nothing is unpickled or written to disk, and each is read, and decoded, up to
a bound only.
"""

from upscale.lab.inputs.arrays import Arrays
from upscale.lab.inputs.finding import INPUTS_HELP, find_samples
from upscale.lab.inputs.pictures import Pictures, Preparation
from upscale.lab.inputs.samples import Batches, Samples, draw

__all__ = [
    "INPUTS_HELP",
    "Arrays",
    "Batches",
    "Pictures",
    "Preparation",
    "Samples",
    "draw",
    "find_samples",
]
