"""Every error a user can cause, as one tree: catch `UpscaleError` to catch them all."""


class UpscaleError(Exception):
    """Something about the caller's model, example, selection or file does not fit."""


class CaptureError(UpscaleError):
    """The model could not be turned into a graph."""


class StateError(CaptureError):
    """The model keeps something from call to call that an export would lose."""


class ExampleError(UpscaleError, ValueError):
    """The example does not fit the model: wrong shape, device or kind."""


class SizeError(UpscaleError, AssertionError):
    """An export is called with sizes that it was not made for."""


class SelectionError(UpscaleError, ValueError):
    """A selection names a layer or a channel that is not there, or contradicts itself."""


class OrderingError(UpscaleError, ValueError):
    """A family of channel sets, its weights or an answer to it is malformed."""


class RecoveryError(UpscaleError, ValueError):
    """A model cannot be refitted on the batches that were given."""


class BatchError(RecoveryError, SelectionError):
    """Batches of data say nothing: there are none, or they are empty, or hold no numbers."""


class PlanError(UpscaleError, ValueError):
    """A plan was asked for something unknown, or does not belong to this model."""


class TargetError(UpscaleError, ValueError):
    """The target is none that an export can be planned for."""


class StoreError(UpscaleError, ValueError):
    """A model cannot be written to a file, or a file cannot be read as one."""


class DeployError(UpscaleError):
    """A model cannot be written in the format asked for."""


class OnnxError(UpscaleError, ValueError):
    """An ONNX file cannot be read, or holds what cannot be turned into a model, or written."""


class VerificationError(UpscaleError):
    """The exported model does not compute what the masked model computes."""


class AmountWarning(UserWarning):
    """A selection prunes less than was asked for; it says how much, and what stopped it."""


class SlowerWarning(UserWarning):
    """Pruning does not pay: no export is faster than the unpruned model; it says by how much."""


class UnverifiedWarning(UserWarning):
    """Nothing that could be run told whether an export is right; it says why."""


class RecoveryWarning(UserWarning):
    """A refit rests on little: it says on what, and what was done."""
